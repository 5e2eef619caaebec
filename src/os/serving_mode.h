// The second half of a process's confinement, which only the process itself can apply because it follows its start:
// once connections are made and files are open, the means to make more are given up for good. Called once, by main,
// after everything it needs is connected. All threads of the process are covered. Needs no_new_privs (harden_process
// sets it). Source: ARCHITECTURE.md, "What each process may do".
#pragma once
#include "base/result.h"

namespace tie::os {

enum class ServingMode {
  // cb_jobhelper, tie-cloud-app: no new sockets (socket, socketpair, connect, bind, listen, accept), no execve, no new
  // process,
  // no memory that becomes executable, no new memfd that could be run. Reading, writing, memory, threads and futexes
  // stay.
  kPerRequest,
  // Daemons: no execve, no new process. They may still connect again to a daemon that was restarted, and accept.
  kDaemon,
};

// Irrevocable. Afterwards the calls above fail with EPERM. Cost: about 0.05 ms. Errors: kIo when the kernel has no
// seccomp.
Result<void> enter_serving_mode(ServingMode mode);

}  // namespace tie::os
