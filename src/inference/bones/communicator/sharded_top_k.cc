#include "inference/bones/communicator/sharded_top_k.h"

#include <algorithm>
#include <limits>

namespace tie::bones {
namespace {

bool before(const RankedLogit& a, const RankedLogit& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

// `best` is a heap whose front is the worst that is kept.
void offer(std::vector<RankedLogit>& best, RankedLogit candidate, uint32_t k) {
  if (best.size() == k) {
    if (!before(candidate, best.front())) return;
    std::pop_heap(best.begin(), best.end(), before);
    best.pop_back();
  }
  best.push_back(candidate);
  std::push_heap(best.begin(), best.end(), before);
}

}  // namespace

std::vector<RankedLogit> shard_top_k(std::span<const float> shard, uint32_t first_id, uint32_t k) {
  std::vector<RankedLogit> best;
  if (k == 0) return best;
  best.reserve(std::min<size_t>(k, shard.size()));
  for (uint32_t i = 0; i < shard.size(); ++i) {
    const float value = shard[i] == shard[i] ? shard[i] : -std::numeric_limits<float>::infinity();
    offer(best, {first_id + i, value}, k);
  }
  std::sort_heap(best.begin(), best.end(), before);
  return best;
}

std::vector<RankedLogit> merge_top_k(std::span<const std::vector<RankedLogit>> shards, uint32_t k) {
  std::vector<RankedLogit> all;
  for (const auto& shard : shards) all.insert(all.end(), shard.begin(), shard.end());
  const size_t keep = std::min<size_t>(k, all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(keep), all.end(), before);
  all.resize(keep);
  return all;
}

}  // namespace tie::bones
