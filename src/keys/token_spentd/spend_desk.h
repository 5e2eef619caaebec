// The one question that token_spentd answers: may this token be spent now, for the first time? A token is in the record
// before the answer is given. The record of an issuer's key is deleted when the key no longer counts; one that cannot
// be restored means that no token of that key is accepted again. Threads: any. Source: ARCHITECTURE.md, "One-time
// tokens".
#pragma once
#include <mutex>

#include "keys/replay_guard/replay_guard.h"
#include "keys/tokens/token_gate.h"
#include "tokens.pb.h"

namespace tie::spentd {

class SpendDesk {
 public:
  SpendDesk(tokens::TokenGate gate, keys::ReplayGuard guard) : gate_(std::move(gate)), guard_(std::move(guard)) {}

  // Restores the records of all keys that count at `now_s` or will. Returns how many cannot be: their tokens are
  // refused.
  size_t restore(int64_t now_s);
  // Cost: one RSA verification and one small write.
  v1::SpendReply spend(const v1::SpendRequest& request, int64_t now_s);
  // Deletes the records of keys that no longer count.
  void reap(int64_t now_s);

 private:
  Bytes record_name(const crypto::Digest& key_id) const;
  int64_t never_back(int64_t now_s);

  const tokens::TokenGate gate_;
  std::mutex mutex_;
  keys::ReplayGuard guard_;  // guarded by mutex_
  int64_t latest_s_ = 0;     // guarded by mutex_: a clock that is set back must not revive a key whose record is gone
};

// One framed request and its answer on `socket`; false when the connection must end.
bool serve_spend(SpendDesk& desk, int socket);

}  // namespace tie::spentd
