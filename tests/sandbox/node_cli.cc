// The node commands of `tie` alone, so that tests of the launcher need no client.
#include <cstdio>
#include <string>
#include <vector>

#include "client/cli/node_commands.h"

int main(int argc, char** argv) {
  std::vector<std::string> rest(argv + (argc > 1 ? 2 : 1), argv + argc);
  std::string command = argc > 1 ? argv[1] : "";
  if (command == "up") return tie::cli::up_command(rest);
  if (command == "down") return tie::cli::down_command(rest);
  if (command == "status") return tie::cli::status_command(rest);
  if (command == "doctor") return tie::cli::doctor_command(rest);
  if (command == "release") return tie::cli::release_command(rest);
  std::fputs("node_cli up|down|status|doctor|release\n", stderr);
  return 2;
}
