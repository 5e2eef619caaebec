#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <memory>

#include "keys/tls_link/pump.h"
#include "keys/tls_link/tls_link.h"

namespace tie::keys {
namespace {

struct AddressFree {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, AddressFree>;

Result<Addresses> resolve(const std::string& address, bool to_listen) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0)
    return fail(Code::kBadRequest, "an address is HOST:PORT, not '" + address + "'");
  std::string host = address.substr(0, colon), port = address.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int said = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (said != 0) return fail(Code::kIo, "resolving " + address + ": " + ::gai_strerror(said));
  return Addresses(found);
}

Result<void> finish_connect(int socket, const std::string& address, Deadline deadline) {
  pollfd wait{socket, POLLOUT, 0};
  int ready = 0;
  while ((ready = ::poll(&wait, 1, static_cast<int>(deadline.remaining_ms()))) < 0 && errno == EINTR) {
  }
  if (ready == 0) return fail(Code::kDeadline, "connecting to " + address + " took too long");
  int error = 0;
  socklen_t size = sizeof error;
  if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0)
    return fail_errno("connecting to " + address, error);
  return {};
}

}  // namespace

Result<os::Fd> listen_tcp(const std::string& address) {
  TIE_TRY(const Addresses found, resolve(address, true));
  os::Fd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fail_errno("creating a socket", errno);
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0) return fail_errno("binding " + address, errno);
  if (::listen(fd.get(), 64) != 0) return fail_errno("listening on " + address, errno);
  return fd;
}

Result<os::Fd> connect_tcp(const std::string& address, Deadline deadline) {
  TIE_TRY(const Addresses found, resolve(address, false));
  os::Fd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fail_errno("creating a socket", errno);
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  if (::connect(fd.get(), found->ai_addr, found->ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return fail_errno("connecting to " + address, errno);
    TIE_CHECK_OK(finish_connect(fd.get(), address, deadline));
  }
  return fd;
}

}  // namespace tie::keys
