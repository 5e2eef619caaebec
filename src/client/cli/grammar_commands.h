// `tie grammar check`: a JSON schema's constraint tried on this machine over a model's own vocabulary, without a node,
// as the node would enforce it. For running other suites. Target: tie_cli_grammar (request/cloud_app), which knows how
// formats are lowered.
#pragma once

namespace CLI {
class App;
}

namespace tie::cli {

// Reads instances, one JSON value a line, from standard input; prints one line for each. On failure it prints a
// sentence on standard error and ends the program with CLI::RuntimeError(1).
void add_grammar_commands(CLI::App& app);

}  // namespace tie::cli
