// afm-runtime-init: process 1 of a model's container in the embedded profile. It starts the runtime and the status
// probe and ends both as soon as either ends (the critical-process rule that supervisord and its wrapper enforce in the
// systemd profile), so that the launcher replaces the whole container.
//   afm-runtime-init -- RUNTIME ARGS... -- PROBE ARGS...
// The runtime inherits the readiness descriptor; the probe learns the runtime's pid from TIE_RUNTIME_PID.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/clock.h"
#include "os/log.h"
#include "os/process.h"

namespace {

using namespace tie;

constexpr int64_t kGraceMs = 5000;  // for the one that is left, after the other has ended
constexpr int64_t kDrainMs =
    15 * 60'000;  // for requests in flight when the container is asked to stop; the launcher is stricter

std::vector<std::vector<char*>> split_commands(int argc, char** argv) {
  std::vector<std::vector<char*>> out;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--") {
      out.emplace_back();
    } else if (!out.empty()) {
      out.back().push_back(argv[i]);
    }
  }
  for (auto& command : out) command.push_back(nullptr);
  return out;
}

pid_t start(const std::vector<char*>& command, bool keeps_readiness) {
  pid_t pid = ::fork();
  if (pid != 0) return pid;
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (!keeps_readiness) {
    ::close(3);
    ::unsetenv("TIE_READY_FD");
  }
  ::execv(command[0], command.data());
  ::_exit(127);
}

// Reaps everything; returns whether `pid` was among it.
bool reap_until(int signals, pid_t pid, int* status, int64_t limit_ms) {
  Deadline deadline = Deadline::in_ms(limit_ms);
  for (;;) {
    int s = 0;
    for (pid_t gone; (gone = ::waitpid(-1, &s, WNOHANG)) > 0;) {
      if (gone != pid) continue;
      *status = s;
      return true;
    }
    if (deadline.passed()) return false;
    pollfd p{signals, POLLIN, 0};
    ::poll(&p, 1, static_cast<int>(std::min<int64_t>(deadline.remaining_ms(), 1000)));
    signalfd_siginfo info;
    while (::read(signals, &info, sizeof info) > 0) {
    }
  }
}

int exit_code(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int run(int signals, pid_t runtime, pid_t probe) {
  for (;;) {
    pollfd p{signals, POLLIN, 0};
    ::poll(&p, 1, 1000);
    bool asked_to_stop = false;
    signalfd_siginfo info;
    while (::read(signals, &info, sizeof info) > 0) asked_to_stop = asked_to_stop || info.ssi_signo != SIGCHLD;
    int status = 0;
    for (pid_t gone; (gone = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (gone != runtime && gone != probe) continue;
      const char* who = gone == runtime ? "runtime" : "probe";
      TIE_LOG("afm-runtime-init", "{} ended with {}; ending the container", os::LogWord(who), exit_code(status));
      pid_t other = gone == runtime ? probe : runtime;
      ::kill(other, SIGTERM);
      int ignored = 0;
      if (!reap_until(signals, other, &ignored, kGraceMs)) ::kill(other, SIGKILL);
      return exit_code(status);
    }
    if (asked_to_stop) {
      ::kill(runtime, SIGTERM);
      (void)reap_until(signals, runtime, &status, kDrainMs);
      return 0;  // the rest of the container ends with process 1
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (auto hardened = os::harden_process(); !hardened) return 1;
  auto commands = split_commands(argc, argv);
  if (commands.size() != 2 || commands[0].size() < 2 || commands[1].size() < 2) {
    std::fputs("usage: afm-runtime-init -- RUNTIME ARGS... -- PROBE ARGS...\n", stderr);
    return 2;
  }
  sigset_t set;
  sigemptyset(&set);
  for (int s : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&set, s);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  int signals = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  pid_t runtime = start(commands[0], true);
  ::setenv("TIE_RUNTIME_PID", std::to_string(runtime).c_str(), 1);
  pid_t probe = start(commands[1], false);
  ::close(3);
  if (signals < 0 || runtime < 0 || probe < 0) return 1;
  return run(signals, runtime, probe);
}
