// The best entries of logits whose vocabulary is cut over ranks: each rank ranks its own columns, the few candidates
// are merged; the rows are never gathered. The order is that of the whole vocabulary: larger value first, then the
// smaller id; NaN counts as minus infinity. Pure functions.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace tie::bones {

struct RankedLogit {
  uint32_t id = 0;
  float value = 0;
};

// The best `k` (fewer when the shard is smaller) of a shard whose first column is vocabulary id first_id. k = 1 is
// arg-max. Cost: one pass and k log k.
std::vector<RankedLogit> shard_top_k(std::span<const float> shard, uint32_t first_id, uint32_t k);

// The best `k` of all shards' candidates, each list as shard_top_k returns it.
std::vector<RankedLogit> merge_top_k(std::span<const std::vector<RankedLogit>> shards, uint32_t k);

}  // namespace tie::bones
