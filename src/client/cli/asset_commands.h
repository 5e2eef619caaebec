// `tie assets keygen|sign|verify`: the operator's signature over models and prompts. Called by operator_commands.
#pragma once

namespace CLI {
class App;
}

namespace tie::cli {

// Adds `assets` to `app`; exit_code as in operator_commands.h.
void add_asset_commands(CLI::App& app, int& exit_code);

}  // namespace tie::cli
