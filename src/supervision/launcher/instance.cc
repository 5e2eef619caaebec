#include "supervision/launcher/instance.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>

namespace tie::launcher {
namespace {

Result<std::pair<os::Fd, os::Fd>> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno("pipe", errno);
  os::Fd reader(ends[0]), writer(ends[1]);
  // The launcher must never block on a reader end; the process's own end stays blocking.
  if (::fcntl(reader.get(), F_SETFL, O_NONBLOCK) != 0) return fail_errno("fcntl", errno);
  return std::pair{std::move(reader), std::move(writer)};
}

}  // namespace

void Instance::signal(int signal_number) {
  if (process.child <= 0 && process.status.valid())
    (void)os::await_child(process, Deadline::in_ms(signal_number == SIGTERM ? 200 : 0));
  if (process.child > 0) ::kill(process.child, signal_number);
  if (signal_number == SIGKILL && process.monitor > 0) ::kill(process.monitor, SIGKILL);
}

Result<Instance> start_instance(os::SandboxLauncher& launcher, const os::SandboxProfile& profile, int connection,
                                bool wants_ready) {
  Instance out;
  TIE_TRY(auto error_pipe, make_pipe());
  os::SpawnDescriptors descriptors;
  descriptors.standard_error = error_pipe.second.get();
  std::pair<os::Fd, os::Fd> ready_pipe;
  if (connection >= 0) {
    descriptors.passed.push_back(connection);
  } else if (wants_ready) {
    TIE_TRY(ready_pipe, make_pipe());
    descriptors.passed.push_back(ready_pipe.second.get());
  }
  TIE_TRY(out.process, launcher.spawn(profile, descriptors));
  out.ready = std::move(ready_pipe.first);
  out.standard_error = std::move(error_pipe.first);
  out.started_ms = monotonic_ms();
  return out;
}

}  // namespace tie::launcher
