#include "keys/workload_servicesd/key_ring.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "keys/workload_servicesd/limits.h"

namespace tie::wsd {
namespace {
std::unexpected<Error> no_such_key() {
  return fail(Code::kKeyUnknownOrExpired,
              "the node no longer has the key this request was sealed to; fetch a new bundle");
}
}  // namespace

// A digest is already as random as a hash.
size_t KeyRing::DigestHash::operator()(const crypto::Digest& digest) const {
  size_t out;
  std::memcpy(&out, digest.data(), sizeof out);
  return out;
}

KeyRing::KeyRing(size_t max_seen_per_key) : max_seen_(max_seen_per_key != 0 ? max_seen_per_key : kMaxSeenPerKey) {}

void KeyRing::add(RequestKey key) {
  std::lock_guard lock(mutex_);
  if (entries_.size() >= kMaxKeys) revoked_uuids_.push_back(revoke_locked(entries_.front().key->id));
  entries_.push_back({std::make_shared<const RequestKey>(std::move(key)), {}});
  changed_locked();
}

KeyRing::Entry* KeyRing::find_locked(ByteView key_id) {
  for (Entry& entry : entries_)
    if (equal_constant_time(entry.key->id, key_id)) return &entry;
  return nullptr;
}

Result<std::shared_ptr<const RequestKey>> KeyRing::find(ByteView key_id, int64_t now_ms) {
  std::lock_guard lock(mutex_);
  Entry* entry = key_id.empty() ? (entries_.empty() ? nullptr : &entries_.back()) : find_locked(key_id);
  if (entry == nullptr || entry->key->dies_at_ms <= now_ms) return no_such_key();
  return entry->key;
}

std::shared_ptr<const RequestKey> KeyRing::newest(crypto::KemId kem, int64_t now_ms) {
  std::lock_guard lock(mutex_);
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry)
    if (entry->key->kem == kem && entry->key->dies_at_ms > now_ms) return entry->key;
  return nullptr;
}

Result<void> KeyRing::mark_seen(const crypto::Digest& key_id, const crypto::Digest& enc_sha256, int64_t now_ms) {
  std::lock_guard lock(mutex_);
  Entry* entry = find_locked(key_id);
  if (entry == nullptr || entry->key->dies_at_ms <= now_ms) return no_such_key();
  if (entry->seen.contains(enc_sha256)) return fail(Code::kReplayed, "this sealed request was seen before");
  if (entry->seen.size() >= max_seen_) {
    revoked_uuids_.push_back(revoke_locked(key_id));
    return no_such_key();
  }
  entry->seen.insert(enc_sha256);
  return {};
}

bool KeyRing::was_seen(const crypto::Digest& key_id, const crypto::Digest& enc_sha256) {
  std::lock_guard lock(mutex_);
  Entry* entry = find_locked(key_id);
  return entry != nullptr && entry->seen.contains(enc_sha256);
}

std::string KeyRing::revoke(const crypto::Digest& key_id) {
  std::lock_guard lock(mutex_);
  return revoke_locked(key_id);
}

std::string KeyRing::revoke_locked(const crypto::Digest& key_id) {
  Entry* entry = find_locked(key_id);
  if (entry == nullptr) return "";
  std::string uuid = entry->key->uuid;
  entries_.erase(entries_.begin() + (entry - entries_.data()));
  revoked_.push_back(key_id);
  if (revoked_.size() > kMaxRevokedListed) revoked_.erase(revoked_.begin());
  changed_locked();
  return uuid;
}

void KeyRing::destroy_all() {
  std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_) revoked_.push_back(entry.key->id);
  if (revoked_.size() > kMaxRevokedListed) revoked_.erase(revoked_.begin(), revoked_.end() - kMaxRevokedListed);
  if (entries_.empty()) return;
  entries_.clear();
  changed_locked();
}

std::vector<std::string> KeyRing::reap(int64_t now_ms) {
  std::lock_guard lock(mutex_);
  std::vector<std::string> uuids;
  for (const Entry& entry : entries_)
    if (entry.key->dies_at_ms <= now_ms) uuids.push_back(entry.key->uuid);
  if (uuids.empty()) return uuids;
  std::erase_if(entries_, [now_ms](const Entry& entry) { return entry.key->dies_at_ms <= now_ms; });
  changed_locked();
  return uuids;
}

std::vector<std::string> KeyRing::take_revoked_uuids() {
  std::lock_guard lock(mutex_);
  return std::exchange(revoked_uuids_, {});
}

KeyRing::Snapshot KeyRing::snapshot(int64_t now_ms) {
  std::lock_guard lock(mutex_);
  Snapshot out;
  out.version = version_;
  out.revoked = revoked_;
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    const auto& key = entry->key;
    if (key->dies_at_ms <= now_ms) continue;
    out.accepted.push_back(key->id);
    const bool newer = std::any_of(out.published.begin(), out.published.end(),
                                   [&](const auto& other) { return other->kem == key->kem; });
    if (!newer) out.published.push_back(key);
  }
  return out;
}

uint64_t KeyRing::version() {
  std::lock_guard lock(mutex_);
  return version_;
}

bool KeyRing::wait_changed(uint64_t seen, int64_t wait_ms) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(wait_ms), [&] { return version_ != seen; });
}

size_t KeyRing::size() {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

bool KeyRing::holds_uuid(const std::string& uuid) {
  std::lock_guard lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.key->uuid == uuid; });
}

void KeyRing::changed_locked() {
  ++version_;
  changed_.notify_all();
}

}  // namespace tie::wsd
