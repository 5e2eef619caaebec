#include "keys/workload_servicesd/key_keeper.h"

#include <algorithm>

#include "keys/workload_servicesd/bundle.h"

namespace tie::wsd {

KeyKeeper::KeyKeeper(KeyService& service, KeyRing& ring, const attestation::EvidenceSigner& signer, NodeFacts facts,
                     std::vector<crypto::KemId> kems, KeeperTimes times)
    : service_(service),
      ring_(ring),
      signer_(signer),
      kems_(std::move(kems)),
      times_(times),
      facts_(std::move(facts)) {}

Result<void> KeyKeeper::step(int64_t now_ms, int64_t wall_ms) {
  if (now_ms >= next_beat_ms_ || service_.link_changed()) TIE_CHECK_OK(beat(now_ms));
  reap(now_ms);
  if (boot_id_.empty()) return {};  // without the service no key can be made
  return make_missing(now_ms, wall_ms);
}

Result<void> KeyKeeper::beat(int64_t now_ms) {
  auto boot_id = service_.heartbeat();
  if (!boot_id) {
    if (beat_backoff_ms_ >= times_.last_backoff_ms) {
      forget_all();
      boot_id_.clear();
    }
    beat_backoff_ms_ =
        beat_backoff_ms_ == 0 ? times_.first_backoff_ms : std::min(beat_backoff_ms_ * 2, times_.last_backoff_ms);
    // Before the first answer nothing is lost by asking often, and the node starts sooner.
    next_beat_ms_ =
        now_ms + (boot_id_.empty() ? std::min(beat_backoff_ms_, times_.first_backoff_ms) : beat_backoff_ms_);
    return std::unexpected(std::move(boot_id.error()));
  }
  if (*boot_id != boot_id_) {
    if (!boot_id_.empty()) forget_all();
    destroy_strangers();
  }
  boot_id_ = *boot_id;
  beat_backoff_ms_ = 0;
  next_beat_ms_ = now_ms + times_.heartbeat_ms;
  return {};
}

Result<void> KeyKeeper::make_missing(int64_t now_ms, int64_t wall_ms) {
  if (now_ms < next_make_ms_) return {};
  const NodeFacts current = facts();
  for (crypto::KemId kem : kems_) {
    const auto newest = ring_.newest(kem, now_ms);
    attestation::KemClaims wanted;
    if (newest) wanted = newest->claims;
    wanted.model_ids = current.model_ids();
    wanted.prompt_digests = current.prompt_digests;
    const bool stale =
        !newest || shall_rotate(kem) || now_ms >= newest->rotate_at_ms || attestation::key_id(wanted) != newest->id;
    if (!stale) continue;
    auto made = make_key(kem, now_ms, wall_ms);
    if (!made) {
      make_backoff_ms_ =
          make_backoff_ms_ == 0 ? times_.first_backoff_ms : std::min(make_backoff_ms_ * 2, times_.last_backoff_ms);
      next_make_ms_ = now_ms + make_backoff_ms_;
      return made;
    }
    has_rotated(kem);
  }
  make_backoff_ms_ = 0;
  return {};
}

Result<void> KeyKeeper::make_key(crypto::KemId kem, int64_t now_ms, int64_t wall_ms) {
  const NodeFacts current = facts();
  RequestKey key;
  key.kem = kem;
  TIE_TRY(key.binding, BindingKey::generate());
  const auto epoch = static_cast<uint64_t>(wall_ms);
  const crypto::Digest challenge = attestation::epoch_challenge(epoch);
  TIE_TRY(const MadeKey made, service_.generate(kem, key.binding->public_key(), times_.lifetime_ms, challenge));
  TIE_TRY(const attestation::Evidence workload,
          signer_.state(attestation::encode(workload_claims(key.binding->public_key(), current)), challenge));
  key.uuid = made.uuid;
  key.claims = {static_cast<uint16_t>(kem), made.public_key,     key.binding->public_key(),
                made.expires_unix_ms,       current.model_ids(), current.prompt_digests};
  key.id = attestation::key_id(key.claims);
  key.bundle =
      std::make_shared<const v1::AttestationBundle>(make_bundle(key.claims, current, workload, made.evidence, epoch));
  key.made_at_ms = now_ms;
  key.rotate_at_ms = now_ms + times_.lifetime_ms / 2;
  key.dies_at_ms = now_ms + times_.lifetime_ms + times_.grace_ms;
  ring_.add(std::move(key));
  return {};
}

void KeyKeeper::reap(int64_t now_ms) {
  std::vector<std::string> uuids = ring_.take_revoked_uuids();
  {
    std::lock_guard lock(mutex_);
    uuids.insert(uuids.end(), to_destroy_.begin(), to_destroy_.end());
    to_destroy_.clear();
  }
  if (now_ms >= next_reap_ms_) {
    for (std::string& uuid : ring_.reap(now_ms)) uuids.push_back(std::move(uuid));
    next_reap_ms_ = now_ms + times_.reap_ms;
  }
  // Best effort: key_protectiond drops them at their expiry in any case, and without the binding key its answers are
  // closed.
  for (const std::string& uuid : uuids) (void)service_.destroy(uuid);
}

// Nobody can open their answers any more, and enough restarts of this daemon would fill key_protectiond with them.
void KeyKeeper::destroy_strangers() {
  auto uuids = service_.enumerate();
  if (!uuids) return;  // they die at their expiry in any case
  for (const std::string& uuid : *uuids)
    if (!ring_.holds_uuid(uuid)) (void)service_.destroy(uuid);
}

void KeyKeeper::forget_all() {
  ring_.destroy_all();
  next_make_ms_ = 0;
}

void KeyKeeper::rotate(crypto::KemId kem) {
  std::lock_guard lock(mutex_);
  if (std::find(to_rotate_.begin(), to_rotate_.end(), kem) == to_rotate_.end()) to_rotate_.push_back(kem);
}

bool KeyKeeper::shall_rotate(crypto::KemId kem) {
  std::lock_guard lock(mutex_);
  return std::find(to_rotate_.begin(), to_rotate_.end(), kem) != to_rotate_.end();
}

void KeyKeeper::has_rotated(crypto::KemId kem) {
  std::lock_guard lock(mutex_);
  std::erase(to_rotate_, kem);
}

void KeyKeeper::set_facts(NodeFacts facts) {
  std::lock_guard lock(mutex_);
  facts_ = std::move(facts);
}

NodeFacts KeyKeeper::facts() const {
  std::lock_guard lock(mutex_);
  return facts_;
}

void KeyKeeper::revoke(const crypto::Digest& key_id) {
  std::string uuid = ring_.revoke(key_id);
  if (uuid.empty()) return;
  std::lock_guard lock(mutex_);
  to_destroy_.push_back(std::move(uuid));
}

}  // namespace tie::wsd
