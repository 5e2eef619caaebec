// What every sandbox launcher does alike in the child it forks: descriptors, signals, limits. Private to the launchers
// of this folder. Everything is laid out before fork, and the child makes system calls only.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "os/sandbox.h"

namespace tie::os {

struct SpawnPlan {
  std::vector<std::string> words;        // program and arguments
  std::vector<std::string> environment;  // NAME=value
  ResourceLimits limits;
  std::vector<std::pair<int, int>> descriptors;  // (from, to)
  int standard_error = -1;
};

constexpr int kFirstPassedFd = 3;
constexpr size_t kMaxPassed = 16;

// Descriptors 3, 4, ... and limits of the profile. kInternal for too many.
Result<SpawnPlan> plan_for(const SandboxProfile& profile, const SpawnDescriptors& descriptors);

// The following run in the child. On failure they say what failed on stderr and exit with kSetupFailedExit.
[[noreturn]] void child_fails(const char* what);
void reset_signals();
// 0, 1: /dev/null; 2: standard_error; then the plan's own; nothing else stays open but CLOEXEC copies above 100.
void arrange_descriptors(const SpawnPlan& plan);
void apply_limits(const ResourceLimits& limits);

// argv/envp form; the strings must outlive it.
std::vector<char*> pointers(std::vector<std::string>& strings);

}  // namespace tie::os
