#include "request/cb_jobhelper/token_check.h"

#include <memory>

#include "base/clock.h"
#include "os/framed_message.h"
#include "request/cb_jobhelper/limits.h"
#include "tokens.pb.h"

namespace tie::request::jobhelper {
namespace {

bool spend(ByteView token, int socket) {
  const Deadline deadline = Deadline::in_ms(kTokenTimeoutMs);
  v1::SpendRequest request;
  request.set_token(token.data(), token.size());
  if (!os::send_message(socket, request, deadline)) return false;
  auto reply = os::receive_message<v1::SpendReply>(socket, kMaxSpendReplyBytes, deadline);
  return reply && reply->message.accepted();
}

}  // namespace

TokenVerifier token_check(tokens::TokenGate gate, int spend_socket) {
  auto shared = std::make_shared<const tokens::TokenGate>(std::move(gate));  // std::function wants to be copyable
  return [shared, spend_socket](ByteView token) {
    return shared->judge(token, wall_clock_ms() / 1000).has_value() && spend(token, spend_socket);
  };
}

}  // namespace tie::request::jobhelper
