// tie-launcher: starts a node in the embedded profile and keeps it running until SIGTERM. `tie up` runs it.
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "supervision/launcher/node_runner.h"

int main(int argc, char** argv) {
  // Whoever waits for the progress lines may go away.
  std::signal(SIGPIPE, SIG_IGN);
  auto flags = tie::launcher::parse_launcher_flags(std::vector<std::string>(argv + 1, argv + argc));
  if (!flags) {
    if (flags.error().code == tie::Code::kCancelled) return 0;
    std::fprintf(stderr, "tie-launcher: %s\n", flags.error().message.c_str());
    return 2;
  }
  // A failure has been told on the status descriptor.
  return tie::launcher::run_node(*flags) ? 0 : 1;
}
