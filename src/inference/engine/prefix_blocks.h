// The runtime's read-through copy of the system-prompt prefix cache: blocks of the sealed pool that are in use, or were
// lately, lie in the KV pool and are lent to every sequence whose prompt begins with them. Nothing else is ever shared
// between requests. Used by the engine's thread only. Owns one reference of each hot block; gives them up, least
// recently used first, when sequences need room.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "inference/engine/kv_pool.h"

namespace tie::engine {

class Sequence;

// Where the blocks come from; the host wraps the restored pool (cache/prefix). Called from the engine's thread.
class PrefixSource {
 public:
  virtual ~PrefixSource() = default;
  virtual uint32_t block_count() const = 0;
  // Indices of stored blocks that a prompt begins with; at least one token of it is left over.
  virtual std::vector<uint32_t> match(std::span<const int32_t> prompt) const = 0;
  // Fills `out`, one block of the KV layout. An error means that the pool is not to be used any more.
  virtual Result<void> read(uint32_t block, std::span<std::byte> out) = 0;
};

class PrefixBlocks {
 public:
  // `source` may be null: then nothing is ever lent. Both must outlive the object.
  PrefixBlocks(PrefixSource* source, KvBlockPool& pool);

  // Gives the blocks of the prompt's stored beginning to a sequence that has none yet. Returns the tokens it need not
  // compute. Cost: on a miss one copy and one SHA-256 of each block.
  uint32_t lend(Sequence& sequence);
  // Frees one hot block that no sequence uses; false when there is none.
  bool evict_one();
  // Hot blocks that evict_one() could free.
  uint32_t evictable() const;

  uint64_t hits() const { return hits_; }
  uint64_t misses() const { return misses_; }
  bool failed() const { return failed_; }

 private:
  static constexpr uint32_t kCold = UINT32_MAX;
  struct Hot {
    uint32_t block = kCold;  // in the KV pool
    uint64_t used = 0;
  };
  bool warm(uint32_t index);

  PrefixSource* source_;
  KvBlockPool& pool_;
  std::vector<Hot> hot_;
  uint64_t clock_ = 0, hits_ = 0, misses_ = 0;
  bool failed_ = false;
};

}  // namespace tie::engine
