// `tie eval`, `tie perplexity` and `tie generate` as a program of their own, for work on bones alone.
#include <CLI/CLI.hpp>

#include "client/cli/model_eval_commands.h"

int main(int argc, char** argv) {
  CLI::App app("evaluates a model file");
  app.require_subcommand(1);
  tie::cli::add_eval_commands(app);
  CLI11_PARSE(app, argc, argv);
  return 0;
}
