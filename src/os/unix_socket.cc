#include "os/unix_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "os/passed_descriptors.h"

namespace tie::os {
namespace {

Result<sockaddr_un> address_of(const std::string& path) {
  // An empty path or a leading zero byte would be an autobound or abstract name, which every process of the machine can
  // reach.
  if (path.empty() || path.find('\0') != std::string::npos)
    return fail(Code::kBadRequest, "a socket needs a path in the file system");
  if (path.size() > kMaxSocketPathBytes)
    return fail(Code::kBadRequest,
                "socket path is longer than " + std::to_string(kMaxSocketPathBytes) + " bytes: " + path);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// Only a socket is removed: a path that names something else was given by mistake.
Result<void> remove_stale_socket(const std::string& path) {
  struct stat st{};
  if (::lstat(path.c_str(), &st) != 0) {
    if (errno == ENOENT) return {};
    return fail_errno(path, errno);
  }
  if (!S_ISSOCK(st.st_mode)) return fail(Code::kAlreadyExists, path + " exists and is not a socket");
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return fail_errno("removing the old socket " + path, errno);
  return {};
}

Result<void> make_blocking(int fd) {
  int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0) return fail_errno("fcntl", errno);
  return {};
}

constexpr size_t kControlBytes = CMSG_SPACE(kMaxPassedFds * sizeof(int));

}  // namespace

std::vector<Fd> take_descriptors(msghdr& message) {
  std::vector<Fd> out;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      out.emplace_back(fd);
    }
  }
  return out;
}

Result<Fd> listen_unix(const std::string& path, int backlog, int mode) {
  TIE_TRY(sockaddr_un address, address_of(path));
  TIE_CHECK_OK(remove_stale_socket(path));
  // Non-blocking, so that a connection taken by another thread between poll and accept cannot hang this one.
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fail_errno("creating a socket", errno);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return fail_errno("binding " + path, errno);
  if (::chmod(path.c_str(), static_cast<mode_t>(mode)) != 0) return fail_errno("setting the mode of " + path, errno);
  if (::listen(fd.get(), backlog) != 0) return fail_errno("listening on " + path, errno);
  return fd;
}

Result<Fd> accept_unix(int listener, Deadline deadline) {
  for (;;) {
    TIE_CHECK_OK(wait_readable(listener, deadline));
    Fd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (fd) return fd;
    if (errno != EINTR && errno != EAGAIN && errno != ECONNABORTED) return fail_errno("accept", errno);
  }
}

Result<Fd> connect_unix(const std::string& path, Deadline deadline) {
  TIE_TRY(sockaddr_un address, address_of(path));
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fail_errno("creating a socket", errno);
  for (;;) {
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) break;
    // A full backlog answers EAGAIN and gives nothing to poll on; everything else is final.
    if (errno != EAGAIN && errno != EINTR) return fail_errno("connecting to " + path, errno);
    if (deadline.passed()) return fail(Code::kDeadline, "connecting to " + path + ": the listener's queue stays full");
    ::usleep(2000);
  }
  TIE_CHECK_OK(make_blocking(fd.get()));
  return fd;
}

Result<std::pair<Fd, Fd>> socket_pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) return fail_errno("socketpair", errno);
  return std::pair{Fd(fds[0]), Fd(fds[1])};
}

Result<PeerCredentials> peer_credentials(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return fail_errno("asking who the peer is", errno);
  return PeerCredentials{credentials.pid, credentials.uid, credentials.gid};
}

Result<void> send_frame(int socket, ByteView payload, std::span<const int> fds, Deadline deadline) {
  if (payload.size() > UINT32_MAX) return fail(Code::kTooLarge, "a frame is at most 4 GiB");
  if (fds.size() > kMaxPassedFds) return fail(Code::kTooLarge, "too many descriptors for one frame");
  Bytes header;
  append_u32_be(header, static_cast<uint32_t>(payload.size()));
  std::array<iovec, 2> parts{iovec{header.data(), header.size()},
                             iovec{const_cast<uint8_t*>(payload.data()), payload.size()}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = payload.empty() ? 1 : 2;
  alignas(cmsghdr) char control[kControlBytes] = {};
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
  }
  ssize_t sent;
  while ((sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL)) < 0) {
    if (errno == EPIPE || errno == ECONNRESET) return fail(Code::kIo, "connection closed");
    if (errno != EAGAIN && errno != EINTR) return fail_errno("send", errno);
    TIE_CHECK_OK(wait_writable(socket, deadline));
  }
  auto done = static_cast<size_t>(sent);
  if (done < header.size()) TIE_CHECK_OK(write_all(socket, ByteView(header).subspan(done), deadline));
  return write_all(socket, payload.subspan(done > header.size() ? done - header.size() : 0), deadline);
}

Result<Frame> receive_frame(int socket, size_t max_bytes, size_t max_fds, Deadline deadline) {
  Frame frame;
  std::array<uint8_t, 4> header;
  size_t done = 0;
  while (done < header.size()) {
    TIE_CHECK_OK(wait_readable(socket, deadline));
    alignas(cmsghdr) char control[kControlBytes];
    iovec part{header.data() + done, header.size() - done};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ssize_t n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n == 0 || (n < 0 && errno == ECONNRESET)) return fail(Code::kIo, "connection closed");
    if (n < 0) return fail_errno("receive", errno);
    std::vector<Fd> fds = take_descriptors(message);
    bool unexpected = (message.msg_flags & MSG_CTRUNC) != 0 || fds.size() > max_fds || (done > 0 && !fds.empty());
    if (unexpected) return fail(Code::kCorrupt, "the peer passed descriptors that this message does not carry");
    if (done == 0) frame.fds = std::move(fds);
    done += static_cast<size_t>(n);
  }
  size_t size = load_u32_be(header.data());
  if (size > max_bytes)
    return fail(Code::kTooLarge,
                "a message of " + std::to_string(size) + " bytes is over the limit of " + std::to_string(max_bytes));
  // Touches memory only as bytes arrive, and never moves them: a claimed length costs nothing and no stale copy of a
  // secret stays behind.
  constexpr size_t kStep = 1 << 20;
  frame.payload.reserve(size);
  while (frame.payload.size() < size) {
    size_t old_size = frame.payload.size();
    frame.payload.resize(std::min(size, old_size + kStep));
    TIE_CHECK_OK(read_exact(socket, std::span(frame.payload).subspan(old_size), deadline));
  }
  return frame;
}

}  // namespace tie::os
