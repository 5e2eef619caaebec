#include "client/cli/prompt_commands.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "client/cli/prompt_assets.h"
#include "os/fd.h"
#include "supervision/launcher/node_config.h"

namespace tie::cli {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 20;

struct Options {
  std::string assets, model, id, file;
  std::string folder() const { return assets.empty() ? launcher::default_assets_folder() : assets; }
};

int say(const Error& error) {
  fmt::print(stderr, "tie node prompt: {}\n", error.message);
  return 1;
}

// The folder has changed, a running node not yet.
void print_next_step(const Options& o) {
  std::error_code ignored;
  if (std::filesystem::exists(o.folder() + "/manifest", ignored))
    fmt::print("  sign the assets anew:                  tie assets sign --key operator.key\n");
  fmt::print("  a running node takes the change with:  tie node reload\n");
}

int add(const Options& o) {
  auto text = os::read_file(o.file, kMaxTextBytes);
  if (!text) return say(text.error());
  auto prompt = make_system_prompt(o.folder(), o.model, o.id, to_string(*text));
  if (!prompt) return say(prompt.error());
  if (auto saved = save_system_prompt(o.folder(), *prompt); !saved) return say(saved.error());
  fmt::print("prompt {} for {}: {} tokens\n", prompt->id, prompt->model, prompt->tokens.size());
  print_next_step(o);
  return 0;
}

int list(const Options& o) {
  auto prompts = list_system_prompts(o.folder());
  if (!prompts) return say(prompts.error());
  for (const auto& prompt : *prompts)
    fmt::print("{:<24} {:<32} {:>7} tokens  {}\n", prompt.id, prompt.model, prompt.tokens.size(),
               prompt.text.substr(0, prompt.text.find('\n')).substr(0, 60));
  return 0;
}

int remove(const Options& o) {
  if (auto removed = remove_system_prompt(o.folder(), o.id); !removed) return say(removed.error());
  fmt::print("removed {}\n", o.id);
  print_next_step(o);
  return 0;
}

}  // namespace

void add_prompt_commands(CLI::App& node, int& exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* prompt = node.add_subcommand("prompt", "system prompts whose computed beginning the node keeps");
  prompt->require_subcommand(1);
  prompt->fallthrough();
  prompt->add_option("--assets", options->assets, "asset folder")->envname("TIE_ASSETS");
  CLI::App* adding = prompt->add_subcommand("add", "register a text as system prompt; replaces one of the same id");
  adding->add_option("file", options->file, "text file")->required();
  adding->add_option("--id", options->id, "name that requests use")->required();
  adding->add_option("--model", options->model, "model it is for")->required();
  adding->callback([options, &exit_code] { exit_code = add(*options); });
  prompt->add_subcommand("list", "registered prompts")->callback([options, &exit_code] { exit_code = list(*options); });
  CLI::App* removing = prompt->add_subcommand("remove", "forget a prompt");
  removing->add_option("id", options->id)->required();
  removing->callback([options, &exit_code] { exit_code = remove(*options); });
}

}  // namespace tie::cli
