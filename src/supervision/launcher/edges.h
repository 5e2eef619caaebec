// Who may talk to whom: the one table of the node's processes and the sockets each of them sees. A process sees a
// socket only if a row here names it; everything else about its sandbox follows in profiles.h. Source: ARCHITECTURE.md,
// "Who may talk to whom".
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tie::launcher {

struct Edge {
  const char* socket;  // "owner": RUN/owner/owner.sock; "runtime", "probe", "kvxfer" and "weights" exist once per model
  const char* flag;    // the process's command-line option that takes the path (of the folder, where a daemon serves
                       // one for each model); nullptr: named in another way
};

enum class Life { kDaemon, kPerModel, kPerRequest };

struct ProcessRow {
  const char* process;  // the program's file name, and the name in logs
  Life life;
  std::vector<Edge> serves;        // may create these sockets
  std::vector<Edge> connects;      // may connect to these
  std::vector<const char*> after;  // daemons that are started and ready first
};

// In start order.
std::span<const ProcessRow> process_table();
const ProcessRow* find_process(std::string_view name);

// Sockets of which there is one per model.
bool is_model_socket(std::string_view socket);

}  // namespace tie::launcher
