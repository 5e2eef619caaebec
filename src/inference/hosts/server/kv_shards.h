// A KV block of a whole model cut into the parts that its ranks hold: of each layer of a rank's stage, its key-value
// heads. The prefix pools at tie-model-owner are kept that way, one for each rank. A model that is alone has one part,
// the block itself. All parts have the size of the largest, zeros behind a smaller one, because the ranks must agree on
// it. Plain values, no threads.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "inference/bones/kv_layout.h"
#include "inference/bones/rank_place.h"

namespace tie::runtime_host {

class KvShards {
 public:
  KvShards() = default;  // of no model
  // Errors: shard_of's.
  static Result<KvShards> of(const bones::ModelConfig& whole, bones::RankPlace grid, const bones::KvLayout& layout);

  uint32_t count() const { return static_cast<uint32_t>(ranks_.size()); }
  size_t part_bytes() const { return part_bytes_; }
  // `block` is layout.block_bytes() long, `part` part_bytes().
  void cut(std::span<const std::byte> block, uint32_t rank, std::span<std::byte> part) const;
  // The other way; what other ranks hold stays as it is. Heads with several copies: the last rank's is kept.
  void join(std::span<const std::byte> part, uint32_t rank, std::span<std::byte> block) const;

 private:
  struct Rank {
    size_t first = 0;  // byte of its first head in its first layer
    size_t bytes = 0;  // of its heads in one layer
    uint32_t n_layers = 0;
  };
  std::vector<Rank> ranks_;
  size_t layer_bytes_ = 0, part_bytes_ = 0;
};

}  // namespace tie::runtime_host
