// What a process does to itself at start and to its children: hardening, pidfds, signals. Called by main functions and
// the launcher.
#pragma once
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "os/fd.h"

namespace tie::os {

// Every daemon's first line: not dumpable (no ptrace, no /proc/PID/mem by peers of the same user), no core dumps,
// no_new_privs, SIGPIPE ignored, umask 0077. It also empties the environment but for an allowlist (PATH, LANG,
// XDG_RUNTIME_DIR, TIE_*).
Result<void> harden_process();

// Descriptors 3.. handed over by the socket-activation protocol (LISTEN_FDS, LISTEN_PID; LISTEN_PID 0 or absent is
// accepted from our launcher inside a pid namespace, where the number differs). Clears the variables.
Result<std::vector<Fd>> activation_fds();
// The one connection of an Accept=yes instance. kFailedPrecondition, with how to start it, when there is none.
Result<Fd> activation_connection();

Result<Fd> pidfd_open(pid_t pid);
Result<Fd> pidfd_of_self();
Result<void> pidfd_signal(int pidfd, int signal);
// True once the process has exited; false at the deadline.
Result<bool> pidfd_wait_exit(int pidfd, Deadline deadline);

// SIGTERM/SIGINT as a descriptor that becomes readable (signalfd); blocks the signals in this thread and those it
// starts later. Call before any thread starts.
Result<Fd> termination_signal_fd();

// Tells systemd (NOTIFY_SOCKET) or our launcher that the service is ready; a no-op without one.
void notify_ready();

}  // namespace tie::os
