// `tie eval`, `tie perplexity`, `tie generate`: a model file evaluated on this machine, without a node. For checking numbers against other engines.
#pragma once

namespace CLI {
class App;
}

namespace tie::cli {

// Adds the three subcommands. Each prints to standard output and ends the program with CLI::RuntimeError(1) after a message on standard error when it fails.
void add_eval_commands(CLI::App& app);

}  // namespace tie::cli
