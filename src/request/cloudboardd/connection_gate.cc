#include "request/cloudboardd/connection_gate.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

#include "os/log.h"

namespace tie::request::cloudboard {
namespace {

constexpr int kBacklog = 512;
constexpr int64_t kOutOfDescriptorsPauseMs = 100;

Result<os::Fd> bound_socket(const addrinfo& info, const std::string& address) {
  os::Fd fd(::socket(info.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return fail_errno("creating a socket", errno);
  int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd.get(), info.ai_addr, info.ai_addrlen) != 0) return fail_errno("binding " + address, errno);
  if (::listen(fd.get(), kBacklog) != 0) return fail_errno("listening on " + address, errno);
  return fd;
}

Result<uint16_t> port_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    return fail_errno("asking for the port", errno);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6&>(address).sin6_port);
  return ntohs(reinterpret_cast<sockaddr_in&>(address).sin_port);
}

}  // namespace

Result<std::unique_ptr<ConnectionGate>> ConnectionGate::listen(EventLoop& loop, const std::string& address,
                                                               size_t max_connections) {
  size_t colon = address.rfind(':');
  if (colon == std::string::npos) return fail(Code::kBadRequest, "an address is HOST:PORT, not " + address);
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{
      .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found) != 0)
    return fail(Code::kBadRequest, "not a numeric address: " + address);
  auto fd = bound_socket(*found, address);
  ::freeaddrinfo(found);
  if (!fd) return std::unexpected(std::move(fd.error()));
  TIE_TRY(uint16_t port, port_of(fd->get()));
  return std::unique_ptr<ConnectionGate>(new ConnectionGate(loop, std::move(*fd), port, max_connections));
}

Result<void> ConnectionGate::start(Accepted accepted) {
  accepted_ = std::move(accepted);
  TIE_TRY(watch_id_, loop_.watch(listener_.get(), EPOLLIN, [this](uint32_t) { on_readable(); }));
  return {};
}

void ConnectionGate::stop() {
  if (watch_id_ != 0) loop_.unwatch(std::exchange(watch_id_, 0));
  listener_.close();
}

void ConnectionGate::on_readable() {
  for (int i = 0; i < 64; ++i) {
    os::Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd) {
      admit(std::move(fd));
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return;
    // Out of descriptors or memory: the connection stays in the queue; looking at it again at once would only burn the
    // processor.
    TIE_LOG("cloudboardd", "cannot accept a connection, error number {}", errno);
    loop_.change(watch_id_, 0);
    loop_.after_ms(kOutOfDescriptorsPauseMs, [this] {
      if (watch_id_ != 0) loop_.change(watch_id_, EPOLLIN);
    });
    return;
  }
}

void ConnectionGate::admit(os::Fd connection) {
  if (open_.size() >= max_) return;  // closed
  int on = 1;
  ::setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  os::Fd copy(::fcntl(connection.get(), F_DUPFD_CLOEXEC, 3));
  if (!copy) return;
  auto id = std::make_shared<EventLoop::Id>(0);
  auto watched = loop_.watch(copy.get(), 0, [this, id](uint32_t) {
    auto found = open_.find(*id);
    loop_.unwatch(*id);
    if (found != open_.end()) open_.erase(found);
  });
  if (!watched) return;
  *id = *watched;
  open_.emplace(*id, std::move(copy));
  accepted_(listener_.get(), std::move(connection));
}

}  // namespace tie::request::cloudboard
