#include "inference/bones/communicator/sharded_top_k.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace tie::bones {
namespace {

TEST(ShardedTopK, EqualsTheTopOfTheWholeVocabulary) {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    const uint32_t n = 1 + random() % 400, shards = 1 + random() % 5, k = random() % 40;
    std::vector<float> logits(n);
    for (float& v : logits) v = static_cast<float>(random() % 30);  // many ties, also across shards
    if (n > 3) logits[2] = NAN;
    std::vector<std::vector<RankedLogit>> parts;
    for (uint32_t s = 0; s < shards; ++s) {
      const uint32_t first = n * s / shards, last = n * (s + 1) / shards;
      parts.push_back(shard_top_k(std::span(logits).subspan(first, last - first), first, k));
    }
    std::vector<uint32_t> ids(n);
    for (uint32_t i = 0; i < n; ++i) ids[i] = i;
    auto value = [&](uint32_t i) { return std::isnan(logits[i]) ? -INFINITY : logits[i]; };
    std::stable_sort(ids.begin(), ids.end(), [&](uint32_t a, uint32_t b) { return value(a) > value(b); });
    const auto merged = merge_top_k(parts, k);
    ASSERT_EQ(merged.size(), std::min(n, k));
    for (size_t i = 0; i < merged.size(); ++i) EXPECT_EQ(merged[i].id, ids[i]);
  }
}

TEST(ShardedTopK, ArgMaxOfATieIsTheSmallestId) {
  const std::vector<float> a{1, 7, 7}, b{7, 2};
  const std::vector<std::vector<RankedLogit>> parts{shard_top_k(a, 0, 1), shard_top_k(b, 3, 1)};
  EXPECT_EQ(merge_top_k(parts, 1).at(0).id, 1u);
}

}  // namespace
}  // namespace tie::bones
