#include "cache/store/store.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "crypto/sha256.h"

namespace tie::cache {

bool Store::VictimOrder::operator()(const Class* a, const Class* b) const {
  if (a->charge != b->charge) return a->charge > b->charge;
  return a->oldest_first.front()->sequence < b->oldest_first.front()->sequence;
}

uint64_t Store::charge_of(const Entry& entry) const {
  uint64_t places = entry.memory.valid() ? limits_.max_descriptors : limits_.max_entries;
  return std::max(entry.size, limits_.capacity_bytes / std::max<uint64_t>(places, 1));
}

bool Store::has_room_for(const Entry& entry) const {
  return charged_ + charge_of(entry) <= limits_.capacity_bytes && entries_.size() < limits_.max_entries &&
         (!entry.memory.valid() || descriptors_ < limits_.max_descriptors);
}

Result<void> Store::make_room(const Entry& entry) {
  if (charge_of(entry) > limits_.capacity_bytes || entry.size > limits_.max_entry_bytes)
    return fail(Code::kTooLarge, "the entry is larger than the store takes");
  while (!has_room_for(entry)) {
    if (victims_.empty()) return fail(Code::kTooLarge, "the store has no room");
    erase((*victims_.begin())->oldest_first.front());
    ++counters_.evictions;
  }
  return {};
}

Result<void> Store::insert(std::unique_ptr<Entry> entry, uint32_t ttl_ms, int64_t now_ms) {
  TIE_CHECK_OK(make_room(*entry));
  entry->expires_ms = now_ms + std::min(ttl_ms == 0 ? kDefaultTtlMs : ttl_ms, kMaxTtlMs);
  entry->charge = charge_of(*entry);
  entry->sequence = ++writes_;
  Class& held = classes_[entry->principal];
  if (!held.oldest_first.empty()) victims_.erase(&held);
  held.charge += entry->charge;
  charged_ += entry->charge;
  used_bytes_ += entry->size;
  descriptors_ += entry->memory.valid();
  entry->by_age = oldest_first_.insert(oldest_first_.end(), entry.get());
  entry->by_age_of_principal = held.oldest_first.insert(held.oldest_first.end(), entry.get());
  victims_.insert(&held);
  EntryId id = entry->id;
  entries_.emplace(id, std::move(entry));
  ++counters_.puts;
  return {};
}

void Store::erase(Entry* entry) {
  Class& held = classes_.find(entry->principal)->second;
  victims_.erase(&held);
  held.charge -= entry->charge;
  held.oldest_first.erase(entry->by_age_of_principal);
  if (held.oldest_first.empty()) {
    classes_.erase(entry->principal);
  } else {
    victims_.insert(&held);
  }
  oldest_first_.erase(entry->by_age);
  charged_ -= entry->charge;
  used_bytes_ -= entry->size;
  descriptors_ -= entry->memory.valid();
  entries_.erase(EntryId(entry->id));
}

Result<void> Store::put(const Principal& principal, const EntryId& id, os::Fd memory, uint64_t bytes, uint32_t ttl_ms,
                        int64_t now_ms) {
  if (bytes == 0 || bytes > limits_.max_entry_bytes)
    return fail(Code::kTooLarge, "an entry has 1 byte to the store's limit");
  TIE_CHECK_OK(os::require_seals(memory.get(), os::kSealAll));
  TIE_TRY(size_t actual, os::file_size(memory.get()));
  if (actual != bytes) return fail(Code::kOutOfRange, "the memory's size is not the one stated");
  if (entries_.contains(id)) return fail(Code::kAlreadyExists, "an entry is written once");
  auto entry = std::make_unique<Entry>();
  entry->id = id;
  entry->principal = principal;
  entry->size = bytes;
  if (bytes <= kInlineBytes) {
    TIE_TRY(os::Mapping mapping, os::Mapping::read_only(memory.get()));
    auto view = mapping.bytes();
    entry->bytes.assign(reinterpret_cast<const uint8_t*>(view.data()),
                        reinterpret_cast<const uint8_t*>(view.data()) + view.size());
  } else {
    entry->memory = std::move(memory);
  }
  return insert(std::move(entry), ttl_ms, now_ms);
}

Result<void> Store::compare_and_swap(const Principal& principal, const EntryId& id, ByteView expected, ByteView value,
                                     uint32_t ttl_ms, int64_t now_ms) {
  if (value.empty() || value.size() > kMaxManifestBytes) return fail(Code::kTooLarge, "a manifest has 1 byte to 1 MiB");
  auto found = entries_.find(id);
  if (found != entries_.end() && found->second->expires_ms <= now_ms) {
    erase(found->second.get());
    found = entries_.end();
  }
  bool matches = found == entries_.end() ? expected.empty() : equal_constant_time(expected, found->second->sha256);
  if (!matches) {
    ++counters_.conflicts;
    return fail(Code::kAlreadyExists, "the entry is not the one expected");
  }
  if (found != entries_.end()) erase(found->second.get());
  auto entry = std::make_unique<Entry>();
  entry->id = id;
  entry->principal = principal;
  entry->size = value.size();
  entry->bytes.assign(value.begin(), value.end());
  entry->sha256 = crypto::sha256(value);
  return insert(std::move(entry), ttl_ms, now_ms);
}

Result<StoredValue> Store::get(const EntryId& id, int64_t now_ms) {
  auto found = entries_.find(id);
  if (found != entries_.end() && found->second->expires_ms <= now_ms) {
    erase(found->second.get());
    ++counters_.expirations;
    found = entries_.end();
  }
  if (found == entries_.end()) {
    ++counters_.misses;
    return fail(Code::kNotFound, "no such entry");
  }
  ++counters_.hits;
  const Entry& entry = *found->second;
  return StoredValue{.bytes = entry.bytes, .fd = entry.memory.get(), .size = entry.size};
}

void Store::remove(const EntryId& id) {
  if (auto found = entries_.find(id); found != entries_.end()) erase(found->second.get());
}

void Store::expire(int64_t now_ms) {
  for (auto next = oldest_first_.begin(); next != oldest_first_.end();) {
    Entry* entry = *next++;
    if (entry->expires_ms > now_ms) continue;
    erase(entry);
    ++counters_.expirations;
  }
}

StoreCounters Store::counters() const {
  StoreCounters out = counters_;
  out.entries = entries_.size();
  out.used_bytes = used_bytes_;
  out.principals = classes_.size();
  return out;
}

}  // namespace tie::cache
