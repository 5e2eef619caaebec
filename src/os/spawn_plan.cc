#include "os/spawn_plan.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

namespace tie::os {
namespace {

// Clamped to what may be set: a lower limit than wanted is still a limit.
void set_limit(decltype(RLIMIT_AS) which, uint64_t value) {
  if (value == 0) return;
  rlimit now{};
  ::getrlimit(which, &now);
  rlim_t wanted = std::min<rlim_t>(value, now.rlim_max);
  rlimit limit{wanted, wanted};
  ::setrlimit(which, &limit);
}

}  // namespace

Result<SpawnPlan> plan_for(const SandboxProfile& profile, const SpawnDescriptors& descriptors) {
  if (descriptors.passed.size() > kMaxPassed) return fail(Code::kInternal, "too many descriptors for a sandbox");
  SpawnPlan plan;
  plan.limits = profile.limits;
  plan.standard_error = descriptors.standard_error;
  int target = kFirstPassedFd;
  for (int fd : descriptors.passed) plan.descriptors.emplace_back(fd, target++);
  return plan;
}

void child_fails(const char* what) {
  std::array<char, 160> text;
  int n = std::snprintf(text.data(), text.size(), "launcher: %s: errno %d\n", what, errno);
  if (n > 0) (void)!::write(STDERR_FILENO, text.data(), static_cast<size_t>(n));
  ::_exit(kSetupFailedExit);
}

void reset_signals() {
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // Whoever started the launcher may ignore signals (Python ignores SIGXFSZ), and an ignored signal survives exec.
  for (int s = 1; s < SIGRTMAX; ++s) ::signal(s, SIG_DFL);
}

void arrange_descriptors(const SpawnPlan& plan) {
  // First out of the way of every target, then into place.
  constexpr int kHigh = 100;
  std::array<int, kMaxPassed + 4> moved{};
  for (size_t i = 0; i < plan.descriptors.size(); ++i) {
    moved[i] = ::fcntl(plan.descriptors[i].first, F_DUPFD_CLOEXEC, kHigh);
    if (moved[i] < 0) child_fails("moving a descriptor");
  }
  int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  int error = plan.standard_error >= 0 ? ::fcntl(plan.standard_error, F_DUPFD_CLOEXEC, kHigh) : null;
  if (null < 0 || error < 0) child_fails("opening /dev/null");
  ::dup2(null, 0);
  ::dup2(null, 1);
  ::dup2(error, 2);
  ::close_range(kFirstPassedFd, kHigh - 1, 0);
  for (size_t i = 0; i < plan.descriptors.size(); ++i)
    if (::dup2(moved[i], plan.descriptors[i].second) < 0) child_fails("placing a descriptor");
}

void apply_limits(const ResourceLimits& limits) {
  rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
#ifndef TIE_SANITIZED
  set_limit(RLIMIT_AS, limits.address_space_bytes);
#endif
  set_limit(RLIMIT_CPU, limits.cpu_seconds);
  set_limit(RLIMIT_NOFILE, limits.open_files);
  set_limit(RLIMIT_FSIZE, limits.file_bytes);
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace tie::os
