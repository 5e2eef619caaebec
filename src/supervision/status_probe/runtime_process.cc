#include "supervision/status_probe/runtime_process.h"

#include <signal.h>
#include <unistd.h>

#include "os/process.h"
#include "os/unix_socket.h"

namespace tie::probe {
namespace {

constexpr int64_t kConnectMs = 50;
constexpr int64_t kKillWaitMs = 2'000;

}  // namespace

Result<void> RuntimeProcess::find() {
  if (known()) return {};
  pid_t pid = pid_;
  if (pid == 0) {
    auto socket = os::connect_unix(socket_, Deadline::in_ms(kConnectMs));
    if (!socket) return fail(Code::kNotReady, "nobody listens on the runtime's socket yet");
    TIE_TRY(os::PeerCredentials peer, os::peer_credentials(socket->get()));
    pid = peer.pid;
  }
  // Never ourselves or the init: an inherited listening socket would name the process that made it.
  if (pid <= 1 || pid == ::getpid())
    return fail(Code::kNotFound, "the runtime's process is not visible in this container");
  TIE_TRY(pidfd_, os::pidfd_open(pid));
  return {};
}

bool RuntimeProcess::exited() {
  if (!known()) return false;
  auto gone = os::pidfd_wait_exit(pidfd_.get(), Deadline::in_ms(0));
  return gone && *gone;
}

Result<void> RuntimeProcess::tell_to_warm_up() {
  if (!known()) return fail(Code::kFailedPrecondition, "the runtime's process is not known");
  return os::pidfd_signal(pidfd_.get(), SIGUSR1);
}

Result<bool> RuntimeProcess::drain(Deadline deadline) {
  if (!known()) return fail(Code::kFailedPrecondition, "the runtime's process is not known");
  if (exited()) return true;
  (void)os::pidfd_signal(pidfd_.get(), SIGTERM);
  TIE_TRY(bool ended, os::pidfd_wait_exit(pidfd_.get(), deadline));
  if (ended) return true;
  (void)os::pidfd_signal(pidfd_.get(), SIGKILL);
  (void)os::pidfd_wait_exit(pidfd_.get(), Deadline::in_ms(kKillWaitMs));
  return false;
}

}  // namespace tie::probe
