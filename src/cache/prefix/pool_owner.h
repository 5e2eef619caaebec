// The owner's side of the prefix pool of one model: one sealed memfd per rank, all or nothing.
// Rule: nothing is handed out unless every rank is ready and all agree; whatever fails a check is thrown away whole.
// Threads: any; one mutex. Cost: seal() hashes the pool (0.6 ms a MB).
#pragma once
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cache/prefix/prefix_trie.h"
#include "os/fd.h"

namespace tie::prefix {

inline constexpr uint32_t kMaxRanks = 64;

// What the owner itself knows about the model; a pool must say the same.
struct PoolIdentity {
  crypto::Digest model_id{};
  crypto::Digest release_id{};
};

class PoolOwner {
 public:
  // `prompts`: the assets, tokens as registered (blocks empty). With none there is nothing to warm.
  PoolOwner(PoolIdentity identity, std::vector<PromptEntry> prompts, uint32_t rank_count = 1);

  const std::vector<PromptEntry>& prompts() const { return prompts_; }
  uint32_t rank_count() const { return static_cast<uint32_t>(ranks_.size()); }

  // A fresh writable pool for the rank; an unfinished or sealed one of before is dropped, and with a sealed one all
  // ranks start over. kBadRequest: sizes over the limits; kOutOfRange: no such rank; kFailedPrecondition: no prompts.
  Result<os::Fd> prepare(uint32_t rank, uint64_t block_bytes, uint32_t block_count, const crypto::Digest& layout_id);

  // Accepts the warmed pool, or drops every rank's. kPermissionDenied: a seal is missing; kCorrupt: the metadata, an
  // identity, a prompt or a block's digest is wrong; kFailedPrecondition: nothing was prepared.
  Result<void> seal(uint32_t rank, const TrieMetadata& metadata);

  struct Attached {
    os::Fd fd;
    TrieMetadata metadata;
  };
  // kNotReady unless every rank is sealed; kCorrupt when ranks disagree (then everything is dropped).
  Result<Attached> attach(uint32_t rank);
  bool ready() const;
  void reset();

 private:
  struct Rank {
    os::Fd fd;
    uint64_t block_bytes = 0;
    uint32_t block_count = 0;
    crypto::Digest layout_id{};
    std::optional<TrieMetadata> sealed;
  };
  Result<void> verify(const Rank& rank, const TrieMetadata& metadata) const;
  Result<void> verify_prompts(const TrieMetadata& metadata) const;
  bool all_sealed() const;
  void drop_all();

  PoolIdentity identity_;
  std::vector<PromptEntry> prompts_;
  mutable std::mutex mutex_;
  std::vector<Rank> ranks_;
};

// SHA-256 of one block of a mapped pool. The block must lie inside.
crypto::Digest block_digest(std::span<const std::byte> pool, uint64_t block_bytes, uint32_t index);

}  // namespace tie::prefix
