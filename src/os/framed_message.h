// Protobuf messages over a framed unix socket: the one way that small daemons of this product talk outside gRPC.
// Template on the message type so that this header needs no protobuf library itself.
#pragma once
#include <string>
#include <vector>

#include "base/secret_bytes.h"
#include "os/unix_socket.h"

namespace tie::os {

template <typename Message>
Result<void> send_message(int socket, const Message& message, Deadline deadline, std::span<const int> fds = {}) {
  std::string text;
  if (!message.SerializeToString(&text)) return fail(Code::kInternal, "message does not serialize");
  auto sent = send_frame(socket, as_bytes(text), fds, deadline);
  secure_zero(text);  // messages carry keys and plaintext
  return sent;
}

template <typename Message>
struct Received {
  Message message;
  std::vector<Fd> fds;
};

template <typename Message>
Result<Received<Message>> receive_message(int socket, size_t max_bytes, Deadline deadline, size_t max_fds = 0) {
  TIE_TRY(Frame frame, receive_frame(socket, max_bytes, max_fds, deadline));
  Received<Message> out;
  bool valid = frame.payload.size() <= INT32_MAX &&
               out.message.ParseFromArray(frame.payload.data(), static_cast<int>(frame.payload.size()));
  secure_zero(frame.payload);
  if (!valid) return fail(Code::kCorrupt, "bytes are not a valid message");
  out.fds = std::move(frame.fds);
  return out;
}

}  // namespace tie::os
