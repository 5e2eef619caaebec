#include "os/serving_mode.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

namespace tie::os {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "serving_mode.cc needs the audit architecture of this machine"
#endif

// Written by hand rather than with libseccomp: per-request programs are static and start in two milliseconds, and the
// list is short.
class Filter {
 public:
  Filter() {
    add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)));
    add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0));
    add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
    load_number();
#if defined(__x86_64__)
    // The x32 numbers are a second door to the same calls.
    add(BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1));
    add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
#endif
  }

  void deny(long number, int error = EPERM) {
    add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 1));
    refuse(error);
  }

  // Refuses the call when any (`refuse_when_set`) or none of `bits` is set in the low word of argument `index`.
  void deny_on_bits(long number, unsigned index, uint32_t bits, bool refuse_when_set) {
    uint8_t when_set = refuse_when_set ? 0 : 1;
    add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 4));
    add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offsetof(seccomp_data, args) + index * 8)));
    add(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, when_set, static_cast<uint8_t>(1 - when_set)));
    refuse(EPERM);
    load_number();
  }

  void allow_the_rest() { add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)); }

  Result<void> install() {
    sock_fprog program{static_cast<unsigned short>(code_.size()), code_.data()};
    if (::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0)
      return fail_errno("giving up system calls", errno);
    return {};
  }

 private:
  void add(sock_filter instruction) { code_.push_back(instruction); }
  void load_number() { add(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))); }
  void refuse(int error) { add(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error))); }
  std::vector<sock_filter> code_;
};

void deny_new_programs(Filter& filter) {
  for (long number : {SYS_execve, SYS_execveat}) filter.deny(number);
#ifdef SYS_fork
  filter.deny(SYS_fork);
  filter.deny(SYS_vfork);
#endif
  filter.deny(SYS_clone3, ENOSYS);  // its flags lie in memory that a filter cannot read; libc falls back to clone
  filter.deny_on_bits(SYS_clone, 0, CLONE_THREAD, false);
}

void deny_new_connections(Filter& filter) {
  for (long number : {SYS_socket, SYS_socketpair, SYS_connect, SYS_bind, SYS_listen, SYS_accept, SYS_accept4})
    filter.deny(number);
}

void deny_new_code(Filter& filter) {
  for (long number : {SYS_mmap, SYS_mprotect, SYS_pkey_mprotect}) filter.deny_on_bits(number, 2, PROT_EXEC, true);
}

}  // namespace

Result<void> enter_serving_mode(ServingMode mode) {
  Filter filter;
  deny_new_programs(filter);
  if (mode == ServingMode::kPerRequest) {
    deny_new_connections(filter);
    deny_new_code(filter);
  }
  filter.allow_the_rest();
  return filter.install();
}

}  // namespace tie::os
