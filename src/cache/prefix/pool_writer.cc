#include "cache/prefix/pool_writer.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "cache/prefix/pool_owner.h"

namespace tie::prefix {

Result<PoolWriter> PoolWriter::create(os::Fd pool, TrieMetadata plan) {
  TIE_CHECK_OK(check(plan));
  TIE_TRY(size_t bytes, os::file_size(pool.get()));
  if (bytes != plan.pool_bytes()) return fail(Code::kCorrupt, "the pool has another size than the plan");
  // Not to shrink under the mapping.
  TIE_CHECK_OK(os::add_seals(pool.get(), F_SEAL_SHRINK | F_SEAL_GROW));
  PoolWriter writer;
  TIE_TRY(writer.mapping_, os::Mapping::read_write(pool.get()));
  writer.fd_ = std::move(pool);
  writer.written_.assign(plan.block_count(), false);
  writer.metadata_ = std::move(plan);
  return writer;
}

Result<void> PoolWriter::write_block(uint32_t index, std::span<const std::byte> payload) {
  if (index >= written_.size()) return fail(Code::kOutOfRange, "no such block");
  if (written_[index]) return fail(Code::kAlreadyExists, "the block has been written");
  if (payload.size() != metadata_.block_bytes) return fail(Code::kBadRequest, "a block has another size");
  auto target = mapping_.writable().subspan(index * metadata_.block_bytes, metadata_.block_bytes);
  std::memcpy(target.data(), payload.data(), payload.size());
  metadata_.block_sha256[index] = block_digest(mapping_.bytes(), metadata_.block_bytes, index);
  written_[index] = true;
  return {};
}

Result<TrieMetadata> PoolWriter::finish() {
  if (std::find(written_.begin(), written_.end(), false) != written_.end())
    return fail(Code::kFailedPrecondition, "a block has not been written");
  mapping_ = os::Mapping();
  TIE_CHECK_OK(os::add_seals(fd_.get(), os::kSealFutureWrite));
  return metadata_;
}

}  // namespace tie::prefix
