// The warming runtime's side: fills the pool that the owner allocated, then seals it. One thread.
// After finish() the object no longer maps the pool: this instance keeps no writable mapping, though the spec would let
// it.
#pragma once
#include "cache/prefix/prefix_trie.h"
#include "os/fd.h"
#include "os/memfd.h"

namespace tie::prefix {

class PoolWriter {
 public:
  // `plan` from plan_blocks(), with identities set. kCorrupt when the memory has another size than the plan.
  static Result<PoolWriter> create(os::Fd pool, TrieMetadata plan);

  // Each block once. kOutOfRange, kAlreadyExists, kBadRequest (payload not block_bytes long). Cost: a copy and a
  // SHA-256 of the block.
  Result<void> write_block(uint32_t index, std::span<const std::byte> payload);
  // Unmaps, seals, returns the metadata with every digest. kFailedPrecondition when a block is missing.
  Result<TrieMetadata> finish();

 private:
  PoolWriter() = default;
  os::Fd fd_;
  os::Mapping mapping_;
  TrieMetadata metadata_;
  std::vector<bool> written_;
};

}  // namespace tie::prefix
