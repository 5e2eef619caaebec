#include "os/seccomp_policy.h"

#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/prctl.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <span>

#include "os/fd.h"

namespace tie::os {
namespace {

using Names = std::span<const char* const>;

// Names that an architecture lacks (open, stat, epoll_create on aarch64) are passed over.
constexpr const char* kCommon[] = {
    // data
    "read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "preadv2", "pwritev2", "lseek",
    "close", "close_range",
    // files that exist
    "open", "openat", "access", "faccessat", "faccessat2", "stat", "lstat", "fstat", "newfstatat", "statx", "statfs",
    "fstatfs", "readlink", "readlinkat", "getdents64", "getcwd", "umask", "fcntl", "flock", "fadvise64", "ftruncate",
    "fallocate", "dup", "dup2", "dup3",
    // waiting
    "poll", "ppoll", "select", "pselect6", "epoll_create", "epoll_create1", "epoll_ctl", "epoll_wait", "epoll_pwait",
    "epoll_pwait2", "eventfd", "eventfd2", "timerfd_create", "timerfd_settime", "timerfd_gettime", "signalfd4", "pipe",
    "pipe2", "pidfd_open", "pidfd_send_signal", "restart_syscall",
    // memory
    "mmap", "munmap", "mremap", "mprotect", "pkey_mprotect", "madvise", "msync", "mincore", "brk", "mlock", "mlock2",
    "munlock", "membarrier", "memfd_create", "memfd_secret",
    // threads and time
    "futex", "futex_waitv", "set_robust_list", "rseq", "set_tid_address", "gettid", "sched_yield", "sched_getaffinity",
    "sched_setaffinity", "sched_getparam", "sched_getscheduler", "sched_get_priority_max", "sched_get_priority_min",
    "getcpu", "clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "time", "times",
    "getitimer", "setitimer",
    // itself
    "getpid", "getppid", "getuid", "geteuid", "getgid", "getegid", "getresuid", "getresgid", "getgroups", "getpgrp",
    "getpgid", "getsid", "uname", "sysinfo", "getrusage", "getrlimit", "setrlimit", "getrandom", "arch_prctl", "capget",
    "seccomp", "getpriority", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "rt_sigpending", "rt_sigtimedwait",
    "rt_sigsuspend", "sigaltstack", "tgkill", "tkill", "kill", "pause", "exit", "exit_group", "execve",
    // sockets it has
    "sendmsg", "recvmsg", "sendto", "recvfrom", "sendmmsg", "recvmmsg", "shutdown", "getsockname", "getpeername",
    "getsockopt", "setsockopt", "connect"};

constexpr const char* kDaemonMore[] = {"bind",          "listen",          "accept",
                                       "accept4",       "unlink",          "unlinkat",
                                       "rename",        "renameat",        "renameat2",
                                       "mkdir",         "mkdirat",         "rmdir",
                                       "chmod",         "fchmod",          "fchmodat",
                                       "truncate",      "fsync",           "fdatasync",
                                       "sendfile",      "copy_file_range", "utimensat",
                                       "chdir",         "symlinkat",       "link",
                                       "linkat",        "setpriority",     "sched_setscheduler",
                                       "sched_setattr", "sched_getattr",   "mbind",
                                       "set_mempolicy", "get_mempolicy"};

constexpr const char* kContainerMore[] = {"fork", "vfork", "wait4", "waitid", "execveat", "setsid", "setpgid"};

// Answered with EPERM by name, so that an attempt is told apart from a call the kernel lacks.
constexpr const char* kForbidden[] = {"ptrace",
                                      "process_vm_readv",
                                      "process_vm_writev",
                                      "process_madvise",
                                      "kcmp",
                                      "pidfd_getfd",
                                      "bpf",
                                      "perf_event_open",
                                      "userfaultfd",
                                      "io_uring_setup",
                                      "io_uring_enter",
                                      "io_uring_register",
                                      "keyctl",
                                      "add_key",
                                      "request_key",
                                      "mount",
                                      "umount2",
                                      "move_mount",
                                      "open_tree",
                                      "fsopen",
                                      "fsmount",
                                      "fsconfig",
                                      "fspick",
                                      "mount_setattr",
                                      "pivot_root",
                                      "chroot",
                                      "unshare",
                                      "setns",
                                      "init_module",
                                      "finit_module",
                                      "delete_module",
                                      "kexec_load",
                                      "kexec_file_load",
                                      "reboot",
                                      "swapon",
                                      "swapoff",
                                      "sethostname",
                                      "setdomainname",
                                      "iopl",
                                      "ioperm",
                                      "modify_ldt",
                                      "acct",
                                      "quotactl",
                                      "open_by_handle_at",
                                      "name_to_handle_at",
                                      "fanotify_init",
                                      "inotify_init1",
                                      "setuid",
                                      "setgid",
                                      "setresuid",
                                      "setresgid",
                                      "setreuid",
                                      "setregid",
                                      "setgroups",
                                      "capset",
                                      "settimeofday",
                                      "clock_settime",
                                      "adjtimex",
                                      "clock_adjtime",
                                      "personality",
                                      "syslog",
                                      "vhangup",
                                      "mknod",
                                      "mknodat",
                                      "execveat",
                                      "fork",
                                      "vfork"};

class Policy {
 public:
  Policy() : context_(seccomp_init(SCMP_ACT_ERRNO(ENOSYS)), &seccomp_release) {}

  void allow(Names names) {
    for (const char* name : names) add(SCMP_ACT_ALLOW, name, {});
  }
  void forbid(Names names) {
    for (const char* name : names) add(SCMP_ACT_ERRNO(EPERM), name, {});
  }
  void allow_when(const char* name, std::initializer_list<scmp_arg_cmp> conditions) {
    add(SCMP_ACT_ALLOW, name, conditions);
  }

  Result<Bytes> program() {
    if (error_ != 0) return fail_errno("building the system call filter", error_);
    seccomp_attr_set(context_.get(), SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    seccomp_attr_set(context_.get(), SCMP_FLTATR_CTL_OPTIMIZE, 2);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno("pipe", errno);
    Fd reader(ends[0]), writer(ends[1]);
    // A filter is a few kilobytes: less than a pipe holds.
    if (int rc = seccomp_export_bpf(context_.get(), writer.get()); rc < 0)
      return fail_errno("exporting the system call filter", -rc);
    writer.close();
    Bytes out(64 * 1024);
    ssize_t n = ::read(reader.get(), out.data(), out.size());
    if (n <= 0) return fail_errno("reading the system call filter", errno);
    out.resize(static_cast<size_t>(n));
    return out;
  }

 private:
  void add(uint32_t action, const char* name, std::initializer_list<scmp_arg_cmp> conditions) {
    int number = seccomp_syscall_resolve_name(name);
    if (number == __NR_SCMP_ERROR || number < 0) return;
    int rc = seccomp_rule_add_array(context_.get(), action, number, static_cast<unsigned>(conditions.size()),
                                    conditions.begin());
    if (rc < 0 && error_ == 0) error_ = -rc;
  }

  std::unique_ptr<void, void (*)(scmp_filter_ctx)> context_;
  int error_ = 0;
};

scmp_arg_cmp equals(unsigned argument, uint64_t value) {
  return SCMP_CMP(argument, SCMP_CMP_EQ, value);
}
scmp_arg_cmp masked(unsigned argument, uint64_t mask, uint64_t value) {
  return SCMP_CMP(argument, SCMP_CMP_MASKED_EQ, mask, value);
}

constexpr uint64_t kNamespaceFlags =
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;

// SOCK_CLOEXEC and SOCK_NONBLOCK share the argument with the type.
constexpr uint64_t kSocketTypeMask = 0xf;

void allow_sockets(Policy& policy, SyscallPolicy kind) {
  bool tcp = kind == SyscallPolicy::kNetworkDaemon;
  if (kind == SyscallPolicy::kPerRequest) {
    // Streams only: a datagram socket can be bound by the kernel on its own, and then be written to without a
    // connection.
    policy.allow_when("socket", {equals(0, AF_UNIX), masked(1, kSocketTypeMask, SOCK_STREAM)});
    policy.allow_when("socketpair", {equals(0, AF_UNIX), masked(1, kSocketTypeMask, SOCK_STREAM)});
    return;
  }
  policy.allow_when("socket", {equals(0, AF_UNIX)});
  policy.allow_when("socketpair", {equals(0, AF_UNIX)});
  if (kind == SyscallPolicy::kGpuRanksContainer) {
    // TCP, since other protocols would have the kernel load their modules; and the question which interfaces there are.
    policy.allow_when("socket", {equals(0, AF_INET), masked(1, kSocketTypeMask, SOCK_STREAM), equals(2, 0)});
    policy.allow_when("socket",
                      {equals(0, AF_NETLINK), masked(1, kSocketTypeMask, SOCK_RAW), equals(2, NETLINK_ROUTE)});
  }
  if (!tcp) return;
  policy.allow_when("socket", {equals(0, AF_INET)});
  policy.allow_when("socket", {equals(0, AF_INET6)});
}

void allow_with_harmless_arguments(Policy& policy) {
  // Terminals and devices have hundreds of ioctls; these are what libraries ask of sockets and pipes.
  for (uint64_t request : {FIONBIO, FIONREAD, FIOCLEX, FIONCLEX, TCGETS, TIOCGWINSZ})
    policy.allow_when("ioctl", {masked(1, 0xffffffff, request)});
  // Limits of itself only.
  policy.allow_when("prlimit64", {equals(0, 0)});
  for (uint64_t option : {PR_SET_NAME, PR_GET_NAME, PR_SET_DUMPABLE, PR_GET_DUMPABLE, PR_SET_NO_NEW_PRIVS,
                          PR_GET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_GET_SECCOMP, PR_SET_TIMERSLACK,
                          PR_CAPBSET_READ, PR_SET_VMA, PR_SET_THP_DISABLE})
    policy.allow_when("prctl", {masked(0, 0xffffffff, option)});
}

// nvidiactl and the GPUs' nodes number theirs under 'F', nvidia-uvm its own from 0 and the two that begin and end its
// use. Which devices these reach is decided by the nodes that the process sees.
void allow_gpu_ioctls(Policy& policy) {
  policy.allow_when("ioctl", {masked(1, 0xff00, uint64_t{'F'} << 8)});
  policy.allow_when("ioctl", {masked(1, 0xffffff00, 0)});
  for (uint64_t request : {0x30000001, 0x30000002}) policy.allow_when("ioctl", {masked(1, 0xffffffff, request)});
}

void allow_new_tasks(Policy& policy, bool processes) {
  if (processes) {
    policy.allow_when("clone", {masked(0, kNamespaceFlags, 0)});
  } else {
    // Threads only.
    policy.allow_when("clone", {masked(0, CLONE_THREAD | kNamespaceFlags, CLONE_THREAD)});
  }
}

}  // namespace

Result<Bytes> seccomp_program(SyscallPolicy policy_kind) {
  if (policy_kind == SyscallPolicy::kNone) return Bytes{};
  Policy policy;
  bool daemon = policy_kind != SyscallPolicy::kPerRequest;
  bool gpu_container = policy_kind == SyscallPolicy::kGpuContainer || policy_kind == SyscallPolicy::kGpuRanksContainer;
  bool processes = policy_kind == SyscallPolicy::kContainer || gpu_container;
  bool gpu = policy_kind == SyscallPolicy::kGpuDaemon || gpu_container;
  policy.allow(kCommon);
  if (daemon) policy.allow(kDaemonMore);
  if (processes) policy.allow(kContainerMore);
  allow_sockets(policy, policy_kind);
  allow_with_harmless_arguments(policy);
  if (gpu) allow_gpu_ioctls(policy);
  allow_new_tasks(policy, processes);
  // clone3 takes its flags from memory, which a filter cannot read: libraries fall back to clone.
  for (const char* name : kForbidden) {
    bool allowed = false;
    if (processes)
      for (const char* more : kContainerMore) allowed = allowed || std::string_view(more) == name;
    if (!allowed) policy.forbid(Names(&name, 1));
  }
  return policy.program();
}

}  // namespace tie::os
