// What a confined process may see and do, as data, and the launchers that start it so. Used by the node's launcher and
// by the compromise harness, which starts attackers in the victim's place with the very same profile. A profile gives:
// its own user, pid, mount, net, ipc, uts and cgroup namespaces; a read-only root that holds only what is named here;
// no capabilities; no_new_privs; resource limits; a system call filter. Everything named keeps its host path inside, so
// that a command line reads the same on both sides. Threads: a launcher belongs to one thread, and that thread must
// outlive what it starts (its children are ended by the kernel when it dies). Source: ARCHITECTURE.md, "Isolation".
#pragma once
#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "os/fd.h"
#include "os/seccomp_policy.h"

namespace tie::os {

struct Bind {
  std::string path;  // on the host
  std::string at;    // inside; empty = same path
  bool writable = false;
  bool device = false;  // device nodes work through it
  bool executable =
      false;  // programs and libraries in it can be run (our own launcher forbids it elsewhere; bubblewrap cannot)
  bool operator==(const Bind&) const = default;
};

struct ResourceLimits {              // 0 = inherited
  uint64_t address_space_bytes = 0;  // left out in sanitizer builds, which reserve terabytes
  uint64_t cpu_seconds = 0;
  uint64_t open_files = 0;
  uint64_t file_bytes = 0;  // the largest file or memfd it may make
  bool operator==(const ResourceLimits&) const = default;
};

struct SandboxProfile {
  std::string name;                                              // for messages
  std::string program;                                           // host path; bound read-only and executed
  std::vector<std::string> arguments;                            // without the program itself
  std::vector<std::pair<std::string, std::string>> environment;  // the whole of it
  std::vector<Bind> binds;
  std::vector<std::string> tmpfs;  // empty writable folders
  bool host_network = false;
  bool proc = false;  // its own /proc (its pid namespace only)
  SyscallPolicy syscalls = SyscallPolicy::kDaemon;
  ResourceLimits limits;
  bool operator==(const SandboxProfile&) const = default;
};

struct SpawnDescriptors {
  std::vector<int> passed;  // become 3, 4, ... inside; nothing else is inherited
  int standard_error = -1;  // -1: /dev/null. Input and output are /dev/null.
};

// A started process. Killing `child` is the way to end it; `monitor` (the bubblewrap process, or the child itself) is
// what is reaped.
struct SandboxedProcess {
  pid_t monitor = -1;
  pid_t child = -1;  // as seen from here; -1 until known when the launcher reports it later on `status`
  Fd status;         // bubblewrap's status pipe; invalid for other launchers
};

class SandboxLauncher {
 public:
  virtual ~SandboxLauncher() = default;
  virtual const char* name() const = 0;
  // Returns as soon as the process exists. A failure inside the sandbox shows as an early exit of the monitor with code
  // kSetupFailedExit.
  virtual Result<SandboxedProcess> spawn(const SandboxProfile& profile, const SpawnDescriptors& descriptors) = 0;
};

constexpr int kSetupFailedExit = 125;

// kNotReady with the reason where namespaces or bubblewrap are missing.
Result<std::unique_ptr<SandboxLauncher>> make_bubblewrap_launcher();
// Our own: the same sandbox by a direct clone into the namespaces, without a second program; see direct_sandbox.cc.
// kNotReady where the kernel lacks something it needs (mount_setattr: Linux 5.12).
Result<std::unique_ptr<SandboxLauncher>> make_direct_launcher();
// No protection at all: for `--insecure-no-sandbox` and the harness's control runs.
std::unique_ptr<SandboxLauncher> make_unprotected_launcher();

// The command line for a profile; separate so that tests can read it. `seccomp_fd`, `status_fd` -1: left out.
std::vector<std::string> bubblewrap_command(const std::string& bubblewrap, const SandboxProfile& profile,
                                            int seccomp_fd, int status_fd);

// Reads the child's number from bubblewrap's status pipe (waits until it is there). Fills process.child.
Result<void> await_child(SandboxedProcess& process, Deadline deadline);

}  // namespace tie::os
