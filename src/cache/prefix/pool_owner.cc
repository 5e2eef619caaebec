#include "cache/prefix/pool_owner.h"

#include <algorithm>

#include "os/memfd.h"

namespace tie::prefix {

crypto::Digest block_digest(std::span<const std::byte> pool, uint64_t block_bytes, uint32_t index) {
  auto block = pool.subspan(index * block_bytes, block_bytes);
  return crypto::sha256(ByteView(reinterpret_cast<const uint8_t*>(block.data()), block.size()));
}

PoolOwner::PoolOwner(PoolIdentity identity, std::vector<PromptEntry> prompts, uint32_t rank_count)
    : identity_(identity), prompts_(std::move(prompts)), ranks_(std::clamp(rank_count, 1u, kMaxRanks)) {}

Result<os::Fd> PoolOwner::prepare(uint32_t rank, uint64_t block_bytes, uint32_t block_count,
                                  const crypto::Digest& layout_id) {
  std::lock_guard lock(mutex_);
  if (prompts_.empty()) return fail(Code::kFailedPrecondition, "this model has no system prompts");
  if (rank >= ranks_.size()) return fail(Code::kOutOfRange, "no such rank");
  if (block_bytes == 0 || block_bytes > kMaxBlockBytes || block_count == 0 || block_count > kMaxBlocks ||
      block_bytes * block_count > kMaxPoolBytes)
    return fail(Code::kBadRequest, "the pool's size is out of range");
  // Warming anew means that all ranks do: a mixture of old and new blocks must not come about.
  if (all_sealed()) drop_all();
  Rank fresh;
  TIE_TRY(fresh.fd, os::create_memfd("tie-prefix", block_bytes * block_count));
  fresh.block_bytes = block_bytes;
  fresh.block_count = block_count;
  fresh.layout_id = layout_id;
  TIE_TRY(os::Fd out, fresh.fd.duplicate());
  ranks_[rank] = std::move(fresh);
  return out;
}

Result<void> PoolOwner::verify_prompts(const TrieMetadata& m) const {
  if (m.prompts.size() != prompts_.size()) return fail(Code::kCorrupt, "the pool holds other prompts than the assets");
  for (const PromptEntry& registered : prompts_) {
    auto same = [&](const PromptEntry& p) { return p.id == registered.id && p.tokens == registered.tokens; };
    if (std::none_of(m.prompts.begin(), m.prompts.end(), same))
      return fail(Code::kCorrupt, "prompt " + registered.id + " of the pool is not the asset's");
  }
  return {};
}

Result<void> PoolOwner::verify(const Rank& rank, const TrieMetadata& m) const {
  // Seals first: only a sealed pool stays what it is while it is looked at.
  TIE_CHECK_OK(os::require_seals(rank.fd.get(), os::kSealFutureWrite));
  if (m.model_id != identity_.model_id) return fail(Code::kCorrupt, "the pool is of another model");
  if (m.release_id != identity_.release_id) return fail(Code::kCorrupt, "the pool is of another release");
  if (m.layout_id != rank.layout_id) return fail(Code::kCorrupt, "the pool has another layout than was prepared");
  if (m.block_bytes != rank.block_bytes || m.block_count() != rank.block_count)
    return fail(Code::kCorrupt, "the pool has other blocks than were prepared");
  TIE_CHECK_OK(check(m));
  TIE_CHECK_OK(verify_prompts(m));
  TIE_TRY(size_t bytes, os::file_size(rank.fd.get()));
  if (bytes != m.pool_bytes()) return fail(Code::kCorrupt, "the pool's memory has another size");
  TIE_TRY(os::Mapping mapping, os::Mapping::read_only(rank.fd.get()));
  for (uint32_t i = 0; i < m.block_count(); ++i)
    if (block_digest(mapping.bytes(), m.block_bytes, i) != m.block_sha256[i])
      return fail(Code::kCorrupt, "block " + std::to_string(i) + " has another digest");
  return {};
}

Result<void> PoolOwner::seal(uint32_t rank, const TrieMetadata& metadata) {
  std::lock_guard lock(mutex_);
  if (rank >= ranks_.size()) return fail(Code::kOutOfRange, "no such rank");
  if (!ranks_[rank].fd || ranks_[rank].sealed)
    return fail(Code::kFailedPrecondition, "no pool of this rank waits to be sealed");
  auto verified = verify(ranks_[rank], metadata);
  if (!verified) {
    drop_all();
    return verified;
  }
  ranks_[rank].sealed = metadata;
  return {};
}

bool PoolOwner::all_sealed() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.sealed.has_value(); });
}

Result<PoolOwner::Attached> PoolOwner::attach(uint32_t rank) {
  std::lock_guard lock(mutex_);
  if (rank >= ranks_.size()) return fail(Code::kOutOfRange, "no such rank");
  if (!all_sealed()) return fail(Code::kNotReady, "the prefix pool is not warm");
  crypto::Digest agreed = trie_digest(*ranks_[0].sealed);
  for (const Rank& other : ranks_) {
    if (trie_digest(*other.sealed) == agreed) continue;
    drop_all();
    return fail(Code::kCorrupt, "the ranks' pools disagree; all were dropped");
  }
  Attached out;
  TIE_TRY(out.fd, ranks_[rank].fd.duplicate());
  out.metadata = *ranks_[rank].sealed;
  return out;
}

bool PoolOwner::ready() const {
  std::lock_guard lock(mutex_);
  return all_sealed();
}

void PoolOwner::drop_all() {
  for (Rank& rank : ranks_) rank = Rank();
}

void PoolOwner::reset() {
  std::lock_guard lock(mutex_);
  drop_all();
}

}  // namespace tie::prefix
