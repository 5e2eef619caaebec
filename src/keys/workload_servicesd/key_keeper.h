// The life of request keys: made with both evidences at start, replaced at half of their life and when what runs here
// changes, dead at expiry plus grace. A key service belongs to one workload: request keys whose binding keys died with
// an earlier start of this daemon are destroyed there at first contact. All are dead when key_protectiond starts anew
// (its keys are gone) or stays silent through the whole back-off. Threads: step() on one thread; set_facts() and
// facts() on any. Owns nothing secret itself: keys lie in the KeyRing. Time is given, so that a day passes in a test.
// Source: ARCHITECTURE.md, "Keys of the node".
#pragma once
#include <functional>
#include <mutex>
#include <vector>

#include "keys/attestation/evidence.h"
#include "keys/workload_servicesd/key_ring.h"
#include "keys/workload_servicesd/kps_client.h"
#include "keys/workload_servicesd/limits.h"
#include "keys/workload_servicesd/node_facts.h"

namespace tie::wsd {

struct KeeperTimes {
  int64_t lifetime_ms = kKeyLifetimeMs;
  int64_t grace_ms = kGraceMs;
  int64_t heartbeat_ms = kHeartbeatMs;
  int64_t first_backoff_ms = kFirstBackoffMs;
  int64_t last_backoff_ms = kLastBackoffMs;
  int64_t reap_ms = kReapMs;
};

class KeyKeeper {
 public:
  KeyKeeper(KeyService& service, KeyRing& ring, const attestation::EvidenceSigner& signer, NodeFacts facts,
            std::vector<crypto::KemId> kems, KeeperTimes times = {});

  // Does what is due at `now_ms` (monotonic); `wall_ms` stamps the publication epoch. Returns what went wrong, for the
  // log; it will be tried again.
  Result<void> step(int64_t now_ms, int64_t wall_ms);
  // A change makes new keys at the next step; requests sealed to the old ones are still served.
  void set_facts(NodeFacts facts);
  NodeFacts facts() const;
  // A fresh key of this suite at the next step, though the newest is still young (an operator asks).
  void rotate(crypto::KemId kem);
  // Revokes one key (its replay record was lost, or an operator asks).
  void revoke(const crypto::Digest& key_id);

 private:
  Result<void> beat(int64_t now_ms);
  bool shall_rotate(crypto::KemId kem);
  void has_rotated(crypto::KemId kem);
  Result<void> make_missing(int64_t now_ms, int64_t wall_ms);
  Result<void> make_key(crypto::KemId kem, int64_t now_ms, int64_t wall_ms);
  void reap(int64_t now_ms);
  void forget_all();
  void destroy_strangers();

  KeyService& service_;
  KeyRing& ring_;
  const attestation::EvidenceSigner& signer_;
  const std::vector<crypto::KemId> kems_;
  const KeeperTimes times_;
  mutable std::mutex mutex_;
  NodeFacts facts_;                       // guarded by mutex_
  std::vector<crypto::KemId> to_rotate_;  // guarded by mutex_
  std::vector<std::string> to_destroy_;   // guarded by mutex_; UUIDs that key_protectiond shall forget
  std::string boot_id_;
  int64_t next_beat_ms_ = 0, next_reap_ms_ = 0, next_make_ms_ = 0;
  int64_t beat_backoff_ms_ = 0, make_backoff_ms_ = 0;
};

}  // namespace tie::wsd
