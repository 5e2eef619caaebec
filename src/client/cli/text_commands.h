// `tie tokenize`, `tie detokenize`, `tie render`: a vocabulary and its chat template tried on this machine, without a
// node. For checking ids against other tokenizers. Target: tie_cli_text.
#pragma once

namespace CLI {
class App;
}

namespace tie::cli {

// Adds the three subcommands. Each reads standard input and prints to standard output; on failure it prints a sentence
// on standard error and ends the program with CLI::RuntimeError(1).
void add_text_commands(CLI::App& app);

}  // namespace tie::cli
