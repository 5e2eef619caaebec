// Requests and replies over a framed unix socket on which replies are known by their order alone: after a failure of
// the connection it is closed, because answers could no longer be told apart. `Reply` has the member `error` of
// common.proto. Threads: one for each socket.
#pragma once
#include "os/framed_message.h"

namespace tie::os {

template <typename Request>
Result<void> send_or_close(Fd& socket, const Request& request, Deadline deadline, std::span<const int> fds = {}) {
  auto sent = send_message(socket.get(), request, deadline, fds);
  if (!sent) socket.close();
  return sent;
}

// The peer's own refusal is an error as well, and leaves the connection open. With at most one descriptor.
template <typename Reply>
Result<Received<Reply>> receive_or_close(Fd& socket, size_t max_bytes, Deadline deadline) {
  if (!socket) return fail(Code::kNotReady, "the connection is closed");
  auto received = receive_message<Reply>(socket.get(), max_bytes, deadline, 1);
  if (!received) {
    socket.close();
  } else if (received->message.has_error()) {
    return fail(static_cast<Code>(received->message.error().code()), received->message.error().message());
  }
  return received;
}

}  // namespace tie::os
