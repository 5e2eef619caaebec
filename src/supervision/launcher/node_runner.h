// The whole life of an embedded node in one call: configuration, run directory, staging, measurement, sandboxes,
// supervision, clean-up. Called by tie-launcher's main, and by tests with another prefix. One thread; the caller has
// started no other.
#pragma once
#include <string>
#include <vector>

#include "supervision/launcher/node_config.h"

namespace tie::launcher {

struct LauncherFlags {
  NodeConfig config;
  std::string config_file;
  int status_fd = 2;  // progress lines for the person who waits
};

// Command line over configuration file over defaults. kBadRequest with a sentence; kCancelled when only help was asked
// for (it was printed).
Result<LauncherFlags> parse_launcher_flags(const std::vector<std::string>& arguments);

// Lines on status_fd: "<unit> ready in N ms" ..., then "node ready in N ms" or, before it returns the error, "failed:
// <reason>".
Result<void> run_node(const LauncherFlags& flags);

}  // namespace tie::launcher
