#include "inference/hosts/server/kv_shards.h"

#include <algorithm>
#include <cstring>

namespace tie::runtime_host {

Result<KvShards> KvShards::of(const bones::ModelConfig& whole, bones::RankPlace grid, const bones::KvLayout& layout) {
  KvShards out;
  out.layer_bytes_ = layout.layer_bytes();
  for (uint32_t rank = 0; rank < grid.count(); ++rank) {
    TIE_TRY(const bones::Shard shard, bones::shard_of(whole, grid.at(rank)));
    out.ranks_.push_back({shard.first_layer * layout.layer_bytes() + shard.first_kv_head * layout.head_bytes(),
                          shard.n_kv_heads * layout.head_bytes(), shard.n_layers});
    out.part_bytes_ = std::max(out.part_bytes_, out.ranks_.back().bytes * shard.n_layers);
  }
  return out;
}

void KvShards::cut(std::span<const std::byte> block, uint32_t rank, std::span<std::byte> part) const {
  const Rank& r = ranks_[rank];
  for (uint32_t i = 0; i < r.n_layers; ++i)
    std::memcpy(part.data() + i * r.bytes, block.data() + r.first + i * layer_bytes_, r.bytes);
  const size_t used = r.n_layers * r.bytes;
  std::memset(part.data() + used, 0, part_bytes_ - used);
}

void KvShards::join(std::span<const std::byte> part, uint32_t rank, std::span<std::byte> block) const {
  const Rank& r = ranks_[rank];
  for (uint32_t i = 0; i < r.n_layers; ++i)
    std::memcpy(block.data() + r.first + i * layer_bytes_, part.data() + i * r.bytes, r.bytes);
}

}  // namespace tie::runtime_host
