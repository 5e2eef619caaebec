// `tie node prompt add|list|remove`: the system prompts whose KV blocks the node keeps. Part of `tie node`
// (operator_commands.h).
#pragma once

namespace CLI {
class App;
}

namespace tie::cli {

// Adds `prompt` below `node`; exit_code as in operator_commands.h.
void add_prompt_commands(CLI::App& node, int& exit_code);

}  // namespace tie::cli
