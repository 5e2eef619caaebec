// RUN/status.json as the launcher of a running node keeps it, read for `tie status`, `tie doctor` and `tie node
// reload`. The launcher is the user's own or root's; still nothing in the file can end the reader. Threads: any.
#pragma once
#include <string>

#include "base/result.h"

namespace tie::launcher {

std::string node_status_path(const std::string& run);

struct NodeStatusFile {
  std::string document;  // the whole text, for a person
  bool node_ready = false;
  bool isolated = false;        // its processes are confined
  bool raw_logs = false;        // its logs may hold what users wrote
  bool models_fixed = false;    // a list of models was named at its start
  std::string gpu_driver_root;  // where its GPU driver lies that is not the system's; empty: it uses none such
};

// kNotReady: no launcher runs in `run`, or it has written nothing yet. kCorrupt: not such a document. kTooLarge.
Result<NodeStatusFile> read_node_status(const std::string& run);
// Of the document alone, whoever wrote it. kCorrupt.
Result<NodeStatusFile> parse_node_status(std::string document);

}  // namespace tie::launcher
