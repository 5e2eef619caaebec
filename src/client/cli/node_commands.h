// The operator's commands about the node of this machine: `tie up`, `tie down`, `tie status`, `tie doctor`, `tie
// release`. Called by `tie`'s main with the words after the command; each parses its own options, prints for a person
// and returns the exit code. One thread, none started. Target: tie_cli_node.
#pragma once
#include <string>
#include <vector>

namespace tie::cli {

// Starts a node (tie-launcher with the same options) and shows its progress. Foreground until Ctrl-C, or with --detach
// until it is ready. 0; 1 with the reason when it does not become ready; 2 for wrong options.
int up_command(const std::vector<std::string>& arguments);

// Stops the node of the run directory and removes what a killed one left. 0 also when none was running.
int down_command(const std::vector<std::string>& arguments);

// The launcher's status document. 0 when the node is ready, 3 when it is not, 1 when none runs.
int status_command(const std::vector<std::string>& arguments);

// --json, --strict, --run-dir, --config. 0; 1 when `tie up` would refuse; with --strict 1 when any guarantee is
// missing.
int doctor_command(const std::vector<std::string>& arguments);

// `tie release measure [PREFIX] [--policy | --manifest]`: the release id of an installed tree, a policy that accepts
// just it, or the manifest.
int release_command(const std::vector<std::string>& arguments);

}  // namespace tie::cli
