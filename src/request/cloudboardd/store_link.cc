#include "request/cloudboardd/store_link.h"

#include "os/framed_message.h"
#include "os/unix_socket.h"
#include "store.pb.h"

namespace tie::request::cloudboard {

os::Fd open_store(const std::string& socket, const std::string& principal) {
  if (socket.empty()) return os::Fd();
  auto connection = os::connect_unix(socket, Deadline::in_ms(0));
  if (!connection) return os::Fd();
  v1::StoreRequest request;
  request.mutable_bind()->set_principal(principal);
  // The first bytes of a new connection always fit; the app reads the answer.
  if (!os::send_message(connection->get(), request, Deadline::in_ms(0))) return os::Fd();
  return std::move(*connection);
}

}  // namespace tie::request::cloudboard
