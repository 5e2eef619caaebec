// From a row of the edge table to the sandbox of one process: the sockets, files, limits and command line that it gets,
// and nothing else. The compromise harness takes its victims' profiles from here. Pure functions over the staged tree;
// used at start by one thread.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "supervision/launcher/edges.h"
#include "supervision/launcher/node_config.h"
#include "supervision/launcher/stage.h"

namespace tie::launcher {

// One thing that the launcher starts: a daemon, a model's runtime container, or a per-request program behind a
// listening socket.
struct Unit {
  std::string name;  // the process's name; "afm-runtime@MODEL" for a model's container
  Life life = Life::kDaemon;
  os::SandboxProfile profile;
  std::string listen_path;                     // kPerRequest: each connection here starts one instance
  std::vector<std::string> after;              // names of units
  bool restart_at_once = false;                // a recycle is a planned exit, not a fault
  std::vector<std::string> log_formats;        // the lines it may write
  std::function<Result<void>()> before_start;  // may be empty; a failure is told and the old state kept
};

struct NodePlan {
  std::vector<Unit> units;           // in start order
  std::vector<std::string> folders;  // below the run directory, to be made first
};

struct NodePlace {
  std::string run;     // the run directory
  std::string assets;  // the operator's assets
  std::vector<std::string> models;
  std::string policy;  // the file by which the local proxy judges the node; empty: none found
};

// `stage` must outlive the plan.
Result<NodePlan> plan_node(const NodeConfig& config, const NodePlace& place, Stage& stage);

}  // namespace tie::launcher
