#include "os/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

extern char** environ;

namespace tie::os {
namespace {

constexpr int kFirstActivationFd = 3;
constexpr int kMaxActivationFds = 16;

bool variable_may_stay(std::string_view entry) {
  std::string_view name = entry.substr(0, entry.find('='));
  constexpr std::array kNames = {"PATH",       "LANG",       "XDG_RUNTIME_DIR", "NOTIFY_SOCKET",
                                 "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"};
  return name.starts_with("TIE_") ||
         std::any_of(kNames.begin(), kNames.end(), [&](const char* n) { return name == n; });
}

void clean_environment() {
  std::vector<std::string> remove;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    std::string_view text = *entry;
    if (!variable_may_stay(text)) remove.emplace_back(text.substr(0, text.find('=')));
  }
  for (const std::string& name : remove) ::unsetenv(name.c_str());
}

std::optional<int> number_in_environment(const char* name) {
  const char* text = ::getenv(name);
  if (text == nullptr) return std::nullopt;
  int value = 0;
  auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  if (error != std::errc() || *end != '\0') return std::nullopt;
  return value;
}

void notify_systemd(const char* path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  size_t length = std::strlen(path);
  if (length == 0 || length >= sizeof address.sun_path) return;
  std::memcpy(address.sun_path, path, length);
  // systemd may name an abstract socket; it writes the leading zero byte as '@'.
  if (path[0] == '@') address.sun_path[0] = '\0';
  Fd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd) return;
  auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  constexpr std::string_view kReady = "READY=1";
  (void)::sendto(fd.get(), kReady.data(), kReady.size(), MSG_NOSIGNAL, reinterpret_cast<sockaddr*>(&address), size);
}

}  // namespace

Result<void> harden_process() {
#ifndef TIE_SANITIZED
  // The leak checker of sanitized test builds attaches to its own process, which a non-dumpable process refuses.
  if (::prctl(PR_SET_DUMPABLE, 0) != 0) return fail_errno("making the process not dumpable", errno);
#endif
  rlimit none{0, 0};
  if (::setrlimit(RLIMIT_CORE, &none) != 0) return fail_errno("forbidding core dumps", errno);
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return fail_errno("setting no_new_privs", errno);
  if (::signal(SIGPIPE, SIG_IGN) == SIG_ERR) return fail_errno("ignoring SIGPIPE", errno);
  ::umask(0077);
  clean_environment();
  return {};
}

Result<std::vector<Fd>> activation_fds() {
  std::optional<int> count = number_in_environment("LISTEN_FDS");
  std::optional<int> pid = number_in_environment("LISTEN_PID");
  for (const char* name : {"LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"}) ::unsetenv(name);
  std::vector<Fd> out;
  if (!count || (pid && *pid != 0 && *pid != ::getpid())) return out;
  if (*count < 0 || *count > kMaxActivationFds) return fail(Code::kOutOfRange, "LISTEN_FDS is not a sensible number");
  for (int fd = kFirstActivationFd; fd < kFirstActivationFd + *count; ++fd) {
    int flags = ::fcntl(fd, F_GETFD);
    if (flags < 0)
      return fail(Code::kFailedPrecondition,
                  "LISTEN_FDS names descriptor " + std::to_string(fd) + ", which is not open");
    ::fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
    out.emplace_back(fd);
  }
  return out;
}

Result<Fd> activation_connection() {
  TIE_TRY(std::vector<Fd> fds, activation_fds());
  if (fds.size() != 1)
    return fail(Code::kFailedPrecondition,
                "this program serves one connection handed over as descriptor 3 (LISTEN_FDS=1): start it through its "
                "socket, by `tie up` or systemd");
  return std::move(fds[0]);
}

Result<Fd> pidfd_open(pid_t pid) {
  long fd = ::syscall(SYS_pidfd_open, pid, 0);
  if (fd < 0) return fail_errno("pidfd_open", errno);
  return Fd(static_cast<int>(fd));
}

Result<Fd> pidfd_of_self() {
  return pidfd_open(::getpid());
}

Result<void> pidfd_signal(int pidfd, int signal) {
  if (::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) != 0)
    return fail_errno("signalling a process", errno);
  return {};
}

Result<bool> pidfd_wait_exit(int pidfd, Deadline deadline) {
  for (;;) {
    pollfd p{pidfd, POLLIN, 0};
    int n = ::poll(&p, 1, static_cast<int>(std::min<int64_t>(deadline.remaining_ms(), INT_MAX)));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return fail_errno("waiting for a process", errno);
    if (deadline.passed()) return false;
  }
}

Result<Fd> termination_signal_fd() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  if (int error = ::pthread_sigmask(SIG_BLOCK, &set, nullptr); error != 0) return fail_errno("blocking signals", error);
  Fd fd(::signalfd(-1, &set, SFD_CLOEXEC));
  if (!fd) return fail_errno("signalfd", errno);
  return fd;
}

void notify_ready() {
  if (std::optional<int> fd = number_in_environment("TIE_READY_FD"); fd && *fd > 2) {
    constexpr std::string_view kReady = "READY=1\n";
    (void)!::write(*fd, kReady.data(), kReady.size());
    ::close(*fd);
    ::unsetenv("TIE_READY_FD");
  }
  if (const char* path = ::getenv("NOTIFY_SOCKET")) notify_systemd(path);
}

}  // namespace tie::os
