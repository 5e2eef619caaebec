// One started process from the launcher's side: its pids, its readiness pipe and its stderr. Owned by the supervisor;
// one thread.
#pragma once
#include <sys/types.h>

#include "base/clock.h"
#include "os/sandbox.h"
#include "supervision/launcher/log_file.h"

namespace tie::launcher {

struct Instance {
  os::SandboxedProcess process;
  os::Fd ready;  // readable when the process says it is ready; daemons only
  os::Fd standard_error;
  LineReader lines;
  int64_t started_ms = 0;

  // Ends it: SIGTERM reaches the program only when its pid is known, SIGKILL always works.
  void signal(int signal_number);
};

// Starts the profile in a sandbox. `connection` (if not -1) becomes descriptor 3; else a readiness pipe does when
// `wants_ready`.
Result<Instance> start_instance(os::SandboxLauncher& launcher, const os::SandboxProfile& profile, int connection,
                                bool wants_ready);

}  // namespace tie::launcher
