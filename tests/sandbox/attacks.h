// What a process that was taken over would try. Each attack returns what it achieved, or nothing when it was stopped.
// The harness runs every attack twice: in the victim's sandbox, where it must fail, and without protection, where it
// must succeed, so that the test can fail.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "os/fd.h"

namespace tie::attacks {

struct Target {
  std::vector<std::string> words;  // what the test knows and the attacker is told: paths, pids, ports
  std::vector<os::Fd> fds;         // descriptors that were passed to it
};

using Attack = std::function<std::string(const Target&)>;

// By the names that the tests use.
const std::map<std::string, Attack>& all();

}  // namespace tie::attacks
