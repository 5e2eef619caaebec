// `tie node prove-stateless`: the operator's own look, as root, for what a canary request could have left behind. Part
// of `tie node` (operator_commands.h). What it looks for: supervision/stateless_proof.
#pragma once

namespace CLI {
class App;
}

namespace tie::cli {

// Adds `prove-stateless` below `node`. Exit codes: 0 nothing was found, 1 something was, 3 the search was not possible
// or not complete, so that nothing is proved.
void add_prove_stateless_command(CLI::App& node, int& exit_code);

}  // namespace tie::cli
