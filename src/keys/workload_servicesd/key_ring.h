// The living request keys of this node with their binding keys, and what was already decapsulated under each. A key
// that is not here decapsulates nothing. Threads: any. Owns: the binding keys (through shared pointers: a use in flight
// finishes). Expiry is on the monotonic clock and is checked at every use. Source: ARCHITECTURE.md, "Keys of the node".
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "keys/attestation/claims.h"
#include "keys/workload_servicesd/binding_key.h"

namespace tie::v1 {
class AttestationBundle;
}

namespace tie::wsd {

struct RequestKey {
  crypto::Digest id{};
  attestation::KemClaims claims;
  std::string uuid;  // key_protectiond's name for it
  crypto::KemId kem = crypto::KemId::kXWing;
  std::shared_ptr<const BindingKey> binding;
  std::shared_ptr<const v1::AttestationBundle> bundle;       // as published
  int64_t made_at_ms = 0, rotate_at_ms = 0, dies_at_ms = 0;  // monotonic
};

class KeyRing {
 public:
  explicit KeyRing(size_t max_seen_per_key = 0);  // 0: kMaxSeenPerKey

  // The newest from now on. Over kMaxKeys the oldest one is revoked.
  void add(RequestKey key);
  // kKeyUnknownOrExpired. An empty id asks for the newest.
  Result<std::shared_ptr<const RequestKey>> find(ByteView key_id, int64_t now_ms);
  std::shared_ptr<const RequestKey> newest(crypto::KemId kem, int64_t now_ms);

  // Remembers an encapsulated key for as long as its request key lives. kReplayed when it was there;
  // kKeyUnknownOrExpired; when the memory is full the key is revoked and the answer is kKeyUnknownOrExpired too.
  Result<void> mark_seen(const crypto::Digest& key_id, const crypto::Digest& enc_sha256, int64_t now_ms);
  bool was_seen(const crypto::Digest& key_id, const crypto::Digest& enc_sha256);

  // The key's UUID, for key_protectiond to destroy; empty when there is no such key.
  std::string revoke(const crypto::Digest& key_id);
  // Every binding key dies now.
  void destroy_all();
  // Drops keys past their grace; returns their UUIDs.
  std::vector<std::string> reap(int64_t now_ms);
  // UUIDs of keys that mark_seen revoked since the last call.
  std::vector<std::string> take_revoked_uuids();

  struct Snapshot {
    uint64_t version = 0;
    std::vector<std::shared_ptr<const RequestKey>> published;  // the newest of each KEM, newest first
    std::vector<crypto::Digest> accepted, revoked;
  };
  Snapshot snapshot(int64_t now_ms);
  uint64_t version();
  // Waits until the version differs from `seen`; false at the deadline.
  bool wait_changed(uint64_t seen, int64_t wait_ms);
  size_t size();
  bool holds_uuid(const std::string& uuid);

 private:
  struct DigestHash {
    size_t operator()(const crypto::Digest& digest) const;
  };
  struct Entry {
    std::shared_ptr<const RequestKey> key;
    std::unordered_set<crypto::Digest, DigestHash> seen;
  };
  Entry* find_locked(ByteView key_id);
  std::string revoke_locked(const crypto::Digest& key_id);
  void changed_locked();

  const size_t max_seen_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t version_ = 0;
  std::vector<Entry> entries_;  // oldest first
  std::vector<crypto::Digest> revoked_;
  std::vector<std::string> revoked_uuids_;
};

}  // namespace tie::wsd
