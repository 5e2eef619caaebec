// What workload_servicesd published: bundles for clients, and which keys may be used. Decides for each request whether
// its key is good, and lets the replay guard follow. Belongs to the event loop's thread. Source: ARCHITECTURE.md, "Keys
// of the node".
#pragma once
#include <map>
#include <string>
#include <vector>

#include "cloudboard.pb.h"
#include "cloudboard_control.pb.h"
#include "keys/replay_guard/replay_guard.h"

namespace tie::request::cloudboard {

class KeyBoard {
 public:
  explicit KeyBoard(keys::ReplayGuard guard) : guard_(std::move(guard)) {}

  // Takes the whole new set. Returns the ids whose replay record cannot be restored: they are refused from now on.
  // kBadRequest for malformed ids or more than kMaxKeys; the old set then stays.
  Result<std::vector<std::string>> publish(const v1::PublishKeysRequest& request);

  struct KeyFacts {
    bool token_required = false;
  };
  // Whether a request may be sealed to it now. kKeyUnknownOrExpired.
  Result<KeyFacts> check(ByteView key_id) const;
  // The first step of a request's life: its fingerprint is recorded, or it is a replay.
  Result<void> admit(ByteView key_id, ByteView encapsulated_key) { return guard_.record(key_id, encapsulated_key); }

  const v1::AttestationSet& published() const { return published_; }

 private:
  struct Key {
    KeyFacts facts;
    uint64_t expires_unix_ms = 0;  // 0: not known
  };
  keys::ReplayGuard guard_;
  std::map<std::string, Key> accepted_;
  v1::AttestationSet published_;
};

}  // namespace tie::request::cloudboard
