// Which processes belong to this machine's node. Reads /proc; one thread.
#pragma once
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace tie::proof {

struct NodeProcess {
  pid_t pid = 0;
  std::string name;  // of the program
};

// The launcher with everything below it (embedded profile); whoever names the run directory on its command line;
// whoever runs as a user "tie-…" (systemd profile). Never this process or one above it. `launcher`: 0 when there is
// none.
std::vector<NodeProcess> node_processes(const std::string& run, pid_t launcher);

}  // namespace tie::proof
