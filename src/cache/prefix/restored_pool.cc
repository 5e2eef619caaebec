#include "cache/prefix/restored_pool.h"

#include <algorithm>
#include <cstring>

namespace tie::prefix {

Result<RestoredPool> RestoredPool::restore(os::Fd pool, TrieMetadata metadata, const Expected& expected) {
  // Seals before the size and the mapping: an unsealed pool could shrink under us.
  TIE_CHECK_OK(os::require_seals(pool.get(), os::kSealFutureWrite));
  if (metadata.model_id != expected.model_id) return fail(Code::kCorrupt, "the prefix pool is of another model");
  if (metadata.release_id != expected.release_id) return fail(Code::kCorrupt, "the prefix pool is of another release");
  if (metadata.layout_id != expected.layout_id) return fail(Code::kCorrupt, "the prefix pool has another layout");
  if (metadata.block_tokens != expected.block_tokens || metadata.block_bytes != expected.block_bytes)
    return fail(Code::kCorrupt, "the prefix pool has another block size");
  TIE_CHECK_OK(check(metadata));
  TIE_TRY(size_t bytes, os::file_size(pool.get()));
  if (bytes != metadata.pool_bytes())
    return fail(Code::kCorrupt, "the prefix pool has another number of blocks than its metadata");
  RestoredPool out;
  TIE_TRY(out.mapping_, os::Mapping::read_only(pool.get()));
  out.trie_ = std::make_unique<PrefixTrie>(metadata);
  out.metadata_ = std::move(metadata);
  return out;
}

Result<void> RestoredPool::read_block(uint32_t index, std::span<std::byte> out) const {
  if (index >= metadata_.block_count()) return fail(Code::kOutOfRange, "no such block");
  if (out.size() != metadata_.block_bytes) return fail(Code::kBadRequest, "a block has another size");
  auto block = mapping_.bytes().subspan(index * metadata_.block_bytes, metadata_.block_bytes);
  std::memcpy(out.data(), block.data(), block.size());
  if (crypto::sha256(ByteView(reinterpret_cast<const uint8_t*>(out.data()), out.size())) ==
      metadata_.block_sha256[index])
    return {};
  std::memset(out.data(), 0, out.size());
  return fail(Code::kCorrupt, "block " + std::to_string(index) + " of the prefix pool fails its digest");
}

const PromptEntry* RestoredPool::find_prompt(std::string_view id) const {
  auto found = std::find_if(metadata_.prompts.begin(), metadata_.prompts.end(),
                            [&](const PromptEntry& p) { return p.id == id; });
  return found == metadata_.prompts.end() ? nullptr : &*found;
}

Result<void> require_agreement(std::span<const crypto::Digest> ranks) {
  for (const crypto::Digest& digest : ranks)
    if (digest != ranks.front()) return fail(Code::kCorrupt, "the ranks' prefix pools disagree");
  return {};
}

}  // namespace tie::prefix
