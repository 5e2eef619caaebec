// `tie node status|recycle|drain|resume|reload`: the operator's commands, over controller.sock. Called by the `tie`
// program's main. The commands print to standard output; errors go to standard error as one sentence.
#pragma once

namespace CLI {
class App;
}

namespace tie::cli {

// Adds `node` with its subcommands. A parsed command runs during parsing and leaves its exit status in `exit_code` (0
// done, 1 failed, 2 the node is not ready); `exit_code` must outlive the app.
void add_node_commands(CLI::App& app, int& exit_code);

}  // namespace tie::cli
