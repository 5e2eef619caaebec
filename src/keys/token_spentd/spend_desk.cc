#include "keys/token_spentd/spend_desk.h"

#include <algorithm>

#include "base/clock.h"
#include "keys/token_spentd/limits.h"
#include "os/framed_message.h"

namespace tie::spentd {

// A record belongs to a key and to this start of the node.
Bytes SpendDesk::record_name(const crypto::Digest& key_id) const {
  const crypto::Digest name = crypto::sha256({ByteView(key_id), ByteView(gate_.challenge_digest())});
  return Bytes(name.begin(), name.end());
}

int64_t SpendDesk::never_back(int64_t now_s) {
  return latest_s_ = std::max(latest_s_, now_s);
}

size_t SpendDesk::restore(int64_t now_s) {
  std::lock_guard lock(mutex_);
  now_s = never_back(now_s);
  size_t lost = 0;
  for (const tokens::IssuerKey& key : gate_.issuer().keys)
    if (now_s < key.not_after_s && !guard_.open_key(record_name(key.id), true)) ++lost;
  return lost;
}

v1::SpendReply SpendDesk::spend(const v1::SpendRequest& request, int64_t now_s) {
  v1::SpendReply reply;
  {
    std::lock_guard lock(mutex_);
    now_s = never_back(now_s);
  }
  const auto good = gate_.judge(as_bytes(request.token()), now_s);
  if (!good) return reply;
  std::lock_guard lock(mutex_);
  // Another thread may have ended the key meanwhile.
  reply.set_accepted(latest_s_ < good->not_after_s &&
                     guard_.record(record_name(good->key_id), good->input).has_value());
  return reply;
}

void SpendDesk::reap(int64_t now_s) {
  std::lock_guard lock(mutex_);
  now_s = never_back(now_s);
  for (const tokens::IssuerKey& key : gate_.issuer().keys)
    if (now_s >= key.not_after_s) guard_.close_key(record_name(key.id));
}

bool serve_spend(SpendDesk& desk, int socket) {
  const Deadline deadline = Deadline::in_ms(kFrameDeadlineMs);
  auto request = os::receive_message<v1::SpendRequest>(socket, kMaxRequestFrameBytes, deadline);
  return request && os::send_message(socket, desk.spend(request->message, wall_clock_ms() / 1000), deadline);
}

}  // namespace tie::spentd
