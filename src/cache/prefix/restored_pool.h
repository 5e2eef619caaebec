// A restarted runtime's side of the prefix pool: validates everything, maps it read-only, rebuilds the trie without a
// forward pass, gives out blocks on demand. Every read copies first and compares the copy's SHA-256 with the metadata,
// because the instance that warmed the pool may still have had it mapped (and because nothing else would notice a
// flipped bit). Threads: read_block() and trie() any, after restore(). Owns the mapping. Rule: restore() fails →
// discard on all ranks, reset the owner, warm again. A failure after that (read_block kCorrupt, ranks that disagree) →
// drop the object, which unmaps, and stop the initialisation or end the service.
#pragma once
#include <memory>

#include "cache/prefix/prefix_trie.h"
#include "os/fd.h"
#include "os/memfd.h"

namespace tie::prefix {

// The runtime's own view, from its attached model, its release and its KV layout.
struct Expected {
  crypto::Digest model_id{};
  crypto::Digest release_id{};
  crypto::Digest layout_id{};
  uint32_t block_tokens = 0;
  uint64_t block_bytes = 0;
};

class RestoredPool {
 public:
  // Errors: kPermissionDenied (a seal is missing), kCorrupt naming the rule. Cost: microseconds and one map insertion
  // per block; no block is read.
  static Result<RestoredPool> restore(os::Fd pool, TrieMetadata metadata, const Expected& expected);

  const PrefixTrie& trie() const { return *trie_; }
  const TrieMetadata& metadata() const { return metadata_; }
  // To be compared between ranks before the first block is used.
  crypto::Digest digest() const { return trie_digest(metadata_); }
  // `out` is block_bytes long; zeroed when the block fails its digest (kCorrupt). Cost: a copy and a SHA-256 (0.6 ms a
  // MB).
  Result<void> read_block(uint32_t index, std::span<std::byte> out) const;
  // The tokens of a registered prompt; nullptr when there is none of that id.
  const PromptEntry* find_prompt(std::string_view id) const;

 private:
  RestoredPool() = default;
  TrieMetadata metadata_;
  os::Mapping mapping_;
  std::unique_ptr<PrefixTrie> trie_;
};

// kCorrupt unless all are equal. What each rank calls with the digests it has collected from all.
Result<void> require_agreement(std::span<const crypto::Digest> ranks);

}  // namespace tie::prefix
