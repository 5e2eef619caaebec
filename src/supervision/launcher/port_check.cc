#include "supervision/launcher/port_check.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "os/fd.h"

namespace tie::launcher {
namespace {

// errno of binding there; 0: it is free.
int try_to_bind(const addrinfo& where) {
  os::Fd socket(::socket(where.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return 0;
  // As the daemons bind: connections of an earlier node that are still closing do not count.
  int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  return ::bind(socket.get(), where.ai_addr, where.ai_addrlen) == 0 ? 0 : errno;
}

}  // namespace

Result<void> check_port_free(const std::string& address, const std::string& flag) {
  size_t colon = address.rfind(':');
  if (colon == std::string::npos) return {};
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{.ai_flags = AI_PASSIVE, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found) != 0) return {};
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, ::freeaddrinfo);
  int error = try_to_bind(*list);
  if (error == 0) return {};
  if (error == EADDRINUSE)
    return fail(Code::kAlreadyExists,
                fmt::format("{} is in use by another program, perhaps another node. `ss -ltnp` names it; `tie down` "
                            "stops this machine's node; {} ADDRESS:PORT chooses another address",
                            address, flag));
  if (error == EACCES)
    return fail(Code::kPermissionDenied,
                fmt::format("{}: this user may not use that port; {} ADDRESS:PORT chooses another", address, flag));
  return fail(Code::kIo,
              fmt::format("{}: {}; {} ADDRESS:PORT chooses another address", address, std::strerror(error), flag));
}

}  // namespace tie::launcher
