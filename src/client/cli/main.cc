// `tie`: the user's program. Parses the command line and runs one command; everything else is in the command files.
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "client/cli/command.h"
#include "client/cli/grammar_commands.h"
#include "client/cli/model_eval_commands.h"
#include "client/cli/node_commands.h"
#include "client/cli/operator_commands.h"
#include "client/cli/text_commands.h"
#include "client/cli/unknown_word.h"

namespace {

constexpr const char* kAbout =
    "tie: private inference. Seals each request on this machine to a node whose software you chose to trust.\n"
    "Begin with:  tie up      (or ./dev up in the source tree)     start a node here\n"
    "             tie chat    talk to it          tie doctor     what this machine can and cannot guarantee";

// Commands that read their own words: the rest of the line is handed over as it is, --help included.
void add_words_command(CLI::App& app, int& exit_code, const char* name, const char* about,
                       int (*run)(const std::vector<std::string>&)) {
  CLI::App* command = app.add_subcommand(name, about);
  command->set_help_flag();
  command->prefix_command();
  command->callback([command, run, &exit_code] { exit_code = run(command->remaining()); });
}

void add_commands(CLI::App& app, int& exit_code) {
  using namespace tie::cli;
  add_ask_commands(app, exit_code);
  add_proxy_command(app, exit_code);
  add_issuer_commands(app, exit_code);
  add_node_facts_commands(app, exit_code);
  add_policy_commands(app, exit_code);
  add_words_command(app, exit_code, "up", "start a node on this machine", up_command);
  add_words_command(app, exit_code, "down", "stop it", down_command);
  add_words_command(app, exit_code, "status", "what this machine's node is doing", status_command);
  add_words_command(app, exit_code, "doctor",
                    "which guarantees this machine gives, which are missing and how to get them", doctor_command);
  add_words_command(app, exit_code, "release", "measure an installed tree: its release id", release_command);
  add_node_commands(app, exit_code);
  add_model_commands(app, exit_code);
  add_text_commands(app);
  add_grammar_commands(app);
  add_eval_commands(app);
  app.add_subcommand("version", "print the version")->callback([] {
    fmt::print("tie {} (protocol 1)\n", TIE_VERSION);
  });
}

}  // namespace

int main(int argc, char** argv) {
  int exit_code = 0;
  CLI::App app{kAbout, "tie"};
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "help of every command");
  app.footer(tie::cli::kExitCodesHelp);
  add_commands(app, exit_code);
  if (argc == 1) {
    fmt::print("{}", app.help());
    return tie::cli::kExitUsage;
  }
  if (auto unknown = tie::cli::explain_unknown_word(app, std::vector<std::string>(argv + 1, argv + argc))) {
    fmt::print(stderr, "{}\n", *unknown);
    return tie::cli::kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : int(tie::cli::kExitUsage);
  }
  return exit_code;
}
