#include "os/fd.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "base/random.h"

namespace tie::os {
namespace {

Result<void> wait_for(int fd, short events, Deadline deadline) {
  for (;;) {
    pollfd p{fd, events, 0};
    int64_t left = std::min<int64_t>(deadline.remaining_ms(), INT_MAX);
    int n = ::poll(&p, 1, static_cast<int>(left));
    if (n > 0) {
      if (p.revents & POLLNVAL) return fail(Code::kInternal, "waiting on a closed descriptor");
      return {};
    }
    if (n < 0 && errno != EINTR) return fail_errno("poll", errno);
    if (deadline.passed()) return fail(Code::kDeadline, "the other side did not answer in time");
  }
}

// A blocking stream can only be written without blocking when the call says so; plain files and pipes get small writes
// after poll.
ssize_t write_some(int fd, ByteView bytes, bool& is_socket) {
  if (is_socket) {
    ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0 || errno != ENOTSOCK) return n;
    is_socket = false;
  }
  return ::write(fd, bytes.data(), std::min<size_t>(bytes.size(), PIPE_BUF));
}

}  // namespace

void Fd::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Result<Fd> Fd::duplicate() const {
  int copy = ::fcntl(fd_, F_DUPFD_CLOEXEC, 3);
  if (copy < 0) return fail_errno("duplicating a descriptor", errno);
  return Fd(copy);
}

Result<void> wait_readable(int fd, Deadline deadline) {
  return wait_for(fd, POLLIN, deadline);
}

Result<void> wait_writable(int fd, Deadline deadline) {
  return wait_for(fd, POLLOUT, deadline);
}

Result<void> read_exact(int fd, std::span<uint8_t> out, Deadline deadline) {
  size_t done = 0;
  while (done < out.size()) {
    TIE_CHECK_OK(wait_for(fd, POLLIN, deadline));
    ssize_t n = ::read(fd, out.data() + done, out.size() - done);
    if (n == 0) return fail(Code::kIo, "connection closed");
    if (n < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      if (errno == ECONNRESET) return fail(Code::kIo, "connection closed");
      return fail_errno("read", errno);
    }
    done += static_cast<size_t>(n);
  }
  return {};
}

Result<void> write_all(int fd, ByteView bytes, Deadline deadline) {
  bool is_socket = true;
  while (!bytes.empty()) {
    TIE_CHECK_OK(wait_for(fd, POLLOUT, deadline));
    ssize_t n = write_some(fd, bytes, is_socket);
    if (n < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      if (errno == EPIPE || errno == ECONNRESET) return fail(Code::kIo, "connection closed");
      return fail_errno("write", errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

std::unexpected<Error> fail_path(const std::string& path, int errno_value) {
  auto failed = fail_errno(path, errno_value);
  if (errno_value == ENOENT) failed.error().code = Code::kNotFound;
  return failed;
}

Result<Bytes> read_file(const std::string& path, size_t max_bytes) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return fail_path(path, errno);
  Bytes out;
  // Size is only a hint: files of /proc say 0 and others may grow while they are read.
  struct stat st{};
  if (::fstat(fd.get(), &st) == 0 && st.st_size > 0)
    out.reserve(std::min<size_t>(static_cast<size_t>(st.st_size), max_bytes) + 1);
  for (;;) {
    size_t old_size = out.size();
    const size_t room = out.capacity() - old_size;
    size_t want = std::min<size_t>(room != 0 ? room : 65536, max_bytes + 1 - old_size);
    out.resize(old_size + want);
    ssize_t n = ::read(fd.get(), out.data() + old_size, want);
    out.resize(old_size + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail_errno(path, errno);
    if (n == 0) return out;
    if (out.size() > max_bytes)
      return fail(Code::kTooLarge, path + " is larger than " + std::to_string(max_bytes) + " bytes");
  }
}

Result<void> write_file_atomic(const std::string& path, ByteView bytes, int mode) {
  std::string beside = path + ".new-" + random_hex(6);
  Fd fd(::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!fd) return fail_errno(beside, errno);
  // The caller's mode counts, not the umask.
  bool ok = ::fchmod(fd.get(), static_cast<mode_t>(mode)) == 0;
  while (ok && !bytes.empty()) {
    ssize_t n = ::write(fd.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    ok = n >= 0;
    if (ok) bytes = bytes.subspan(static_cast<size_t>(n));
  }
  ok = ok && ::rename(beside.c_str(), path.c_str()) == 0;
  if (ok) return {};
  int saved = errno;
  ::unlink(beside.c_str());
  return fail_errno("writing " + path, saved);
}

}  // namespace tie::os
