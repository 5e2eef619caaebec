// The runtime as a process of this container: who it is, whether it lives, how it is asked to drain. Threads: one at a
// time.
#pragma once
#include <sys/types.h>

#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "os/fd.h"

namespace tie::probe {

class RuntimeProcess {
 public:
  // pid 0: ask the kernel who listens on the runtime's socket, once somebody does.
  RuntimeProcess(pid_t pid, std::string runtime_socket) : pid_(pid), socket_(std::move(runtime_socket)) {}

  // Finds the process if it is not known yet. kNotReady: nobody listens yet; kNotFound: it is gone, or not of this pid
  // namespace.
  Result<void> find();
  bool known() const { return pidfd_.valid(); }
  // True when a known runtime has exited. An unknown one is not said to have.
  bool exited();
  // SIGUSR1: warm the prefix cache. kFailedPrecondition when no process is known.
  Result<void> tell_to_warm_up();
  // SIGTERM, wait, SIGKILL at the deadline. True when it ended by itself. kFailedPrecondition when no process is known.
  Result<bool> drain(Deadline deadline);

 private:
  pid_t pid_;
  std::string socket_;
  os::Fd pidfd_;
};

}  // namespace tie::probe
