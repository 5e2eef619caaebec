// The system calls that a sandboxed process starts with: an allowlist, as a BPF program for bubblewrap or our own
// launcher. What is not listed answers ENOSYS (so that libraries fall back), what is known to be dangerous answers
// EPERM, other architectures end the process. Used by the launcher only (needs libseccomp); the process's own second
// stage is serving_mode.h.
#pragma once
#include "base/bytes.h"

namespace tie::os {

enum class SyscallPolicy {
  kPerRequest,         // cb_jobhelper, tie-cloud-app: unix sockets out, threads; no listening, no files made, no child
                       // processes
  kDaemon,             // unix sockets in and out, files in its own folder, threads; no child processes
  kNetworkDaemon,      // kDaemon and TCP
  kContainer,          // kDaemon and child processes (the runtime and its probe under their init)
  kGpuDaemon,          // kDaemon and the ioctls of NVIDIA's driver: only for processes that see its devices
  kGpuContainer,       // kContainer and these
  kGpuRanksContainer,  // kGpuContainer, and TCP and the list of interfaces of its own, empty network: NCCL's ranks meet
                       // by it
  kNone,               // no filter: only for the harness's control runs
};

// The program as an array of struct sock_filter. Empty for kNone. Cost: 1 to 2 ms; the launcher keeps it.
Result<Bytes> seccomp_program(SyscallPolicy policy);

}  // namespace tie::os
