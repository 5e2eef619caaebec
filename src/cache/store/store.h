// The node's cache store: ciphertext entries in memory, each under an unguessable id, with a deadline, an owner class
// and a size. Pure bookkeeping over bytes that it cannot read; a restart loses everything by design. Called by
// cache_stored's loop; one thread. Eviction: over capacity, first the oldest writes of the principal that holds most
// (the writer's own class included), the oldest write among principals that hold alike: a principal that writes without
// end pushes out its own entries, not those of others. Every entry counts as its share of the entries (or descriptors)
// that the store has at least, so that a flood of tiny ones is a flood. Cost: logarithmic in the principals. Source:
// spec, "Per-user KV cache"; the fairness is this product's extension.
#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>

#include "base/bytes.h"
#include "os/memfd.h"

namespace tie::cache {

constexpr size_t kEntryIdBytes = 32;
constexpr size_t kPrincipalBytes = 32;
constexpr size_t kMaxManifestBytes = 1u << 20;
constexpr size_t kInlineBytes = 128u << 10;  // smaller entries are copied into the store: no descriptor each
constexpr uint32_t kMaxTtlMs = 24u * 3600 * 1000;
constexpr uint32_t kDefaultTtlMs = 30u * 60 * 1000;

struct StoreLimits {
  uint64_t capacity_bytes = 1ull << 30;
  uint32_t max_entries = 65536;
  uint32_t max_descriptors = 4096;  // entries kept as descriptors
  uint64_t max_entry_bytes = 256ull << 20;
  uint64_t max_anonymous_bytes_per_connection = 256ull << 20;
};

// A fixed 32-byte id; anything else from the wire is refused before it gets here.
using EntryId = std::array<uint8_t, kEntryIdBytes>;
using Principal = std::string;  // 32 bytes, or empty: the anonymous class

struct StoreCounters {
  uint64_t entries = 0;
  uint64_t used_bytes = 0;
  uint64_t principals = 0;  // that hold entries
  uint64_t puts = 0, hits = 0, misses = 0, evictions = 0, expirations = 0, conflicts = 0;
};

// What a get gives: either the bytes or a descriptor of sealed memory, never both.
struct StoredValue {
  ByteView bytes;  // valid until the next call
  int fd = -1;     // the store's own; duplicate by sending it
  uint64_t size = 0;
};

class Store {
 public:
  explicit Store(const StoreLimits& limits) : limits_(limits) {}

  // Takes sealed memory (all four seals, exactly `bytes` long). Replaces nothing: kAlreadyExists for an id in use,
  // since segments are immutable. Errors: kPermissionDenied (seals), kTooLarge, kOutOfRange.
  Result<void> put(const Principal& principal, const EntryId& id, os::Fd memory, uint64_t bytes, uint32_t ttl_ms,
                   int64_t now_ms);
  // Installs a small value if the entry's present SHA-256 equals `expected` (empty: no entry). kAlreadyExists on a
  // conflict.
  Result<void> compare_and_swap(const Principal& principal, const EntryId& id, ByteView expected, ByteView value,
                                uint32_t ttl_ms, int64_t now_ms);
  // kNotFound when missing or expired.
  Result<StoredValue> get(const EntryId& id, int64_t now_ms);
  void remove(const EntryId& id);
  // Drops what has expired; call about once a second.
  void expire(int64_t now_ms);

  StoreCounters counters() const;
  const StoreLimits& limits() const { return limits_; }

 private:
  struct Entry {
    EntryId id;
    Principal principal;
    Bytes bytes;
    os::Fd memory;
    uint64_t size = 0;
    uint64_t charge = 0;    // what eviction counts
    uint64_t sequence = 0;  // of its write
    int64_t expires_ms = 0;
    std::array<uint8_t, 32> sha256{};  // of manifests only
    std::list<Entry*>::iterator by_age, by_age_of_principal;
  };
  struct Class {
    uint64_t charge = 0;
    std::list<Entry*> oldest_first;
  };
  // The next victim's class comes first: the largest charge, then the oldest first write.
  struct VictimOrder {
    bool operator()(const Class* a, const Class* b) const;
  };
  struct IdHash {
    size_t operator()(const EntryId& id) const { return load_u64_be(id.data()); }  // ids are uniform already
  };

  Result<void> insert(std::unique_ptr<Entry> entry, uint32_t ttl_ms, int64_t now_ms);
  void erase(Entry* entry);
  uint64_t charge_of(const Entry& entry) const;
  bool has_room_for(const Entry& entry) const;
  Result<void> make_room(const Entry& entry);

  StoreLimits limits_;
  std::unordered_map<EntryId, std::unique_ptr<Entry>, IdHash> entries_;
  std::map<Principal, Class> classes_;
  std::set<Class*, VictimOrder> victims_;  // a class leaves it while it changes
  std::list<Entry*> oldest_first_;
  uint64_t used_bytes_ = 0;
  uint64_t charged_ = 0;
  uint64_t writes_ = 0;
  uint32_t descriptors_ = 0;
  StoreCounters counters_;
};

}  // namespace tie::cache
