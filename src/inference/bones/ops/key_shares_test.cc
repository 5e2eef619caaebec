#include "inference/bones/ops/key_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "inference/bones/kernels/kernel_set.h"

namespace tie::bones {
namespace {

struct Deep {
  std::vector<uint32_t> tables[4];
  std::vector<SequenceSpan> spans;
  Batch batch;
  std::vector<AttentionItem> items;
  uint32_t group;

  // Sequences of one or a few rows at `depths`, as plan_attention cuts them.
  Deep(std::vector<uint32_t> depths, uint32_t rows, uint32_t kv_heads, uint32_t group) : group(group) {
    for (uint32_t s = 0; s < depths.size(); ++s) {
      spans.push_back({s * rows, rows, depths[s], tables[s]});
      for (uint32_t first = 0; first < rows * group; first += kAttentionRows)
        for (uint32_t head = 0; head < kv_heads; ++head)
          items.push_back({s, head, first, std::min(kAttentionRows, rows * group - first), 0});
    }
    batch.sequences = spans;
  }

  // The parts of each thread in the order it takes them.
  std::vector<std::vector<KeyPart>> parts(uint32_t n_threads, uint32_t window) const {
    std::vector<KeyCut> cuts;
    cut_keys(items, batch, group, window, n_threads, cuts);
    std::vector<std::vector<KeyPart>> out(n_threads);
    for (uint32_t t = 0; t < n_threads; ++t) {
      KeyShare share(items, batch, group, window, cuts, t);
      for (KeyPart part; share.take(part);) out[t].push_back(part);
    }
    return out;
  }
};

TEST(KeyShares, TwoThreadsDivideTheHeadInTheMiddle) {
  const Deep deep({2048}, 1, 3, 3);
  const auto parts = deep.parts(2, 0);
  ASSERT_EQ(parts[0].size(), 2u);  // the shared head first, and last on the other thread
  EXPECT_EQ(parts[0][0].item, 1u);
  EXPECT_EQ(parts[0][0].own.first, 0u);
  EXPECT_EQ(parts[0][0].own.last, 8u);
  EXPECT_FALSE(parts[0][0].newest());
  EXPECT_TRUE(parts[0][1].whole());
  ASSERT_EQ(parts[1].size(), 2u);
  EXPECT_TRUE(parts[1][0].whole());
  EXPECT_EQ(parts[1][1].item, 1u);
  EXPECT_EQ(parts[1][1].own.first, 8u);
  EXPECT_EQ(parts[1][1].own.last, 17u);
  EXPECT_EQ(parts[1][1].first_end, 8u);
  EXPECT_TRUE(parts[1][1].newest());
}

TEST(KeyShares, AWindowLeavesOnlyItsBlocks) {
  const Deep deep({2048}, 1, 1, 4);
  const auto parts = deep.parts(2, 512);
  ASSERT_EQ(parts[0].size(), 1u);
  ASSERT_EQ(parts[1].size(), 1u);
  EXPECT_EQ(parts[0][0].of_item.first, (2049u - 512) / kKeyBlock);
  EXPECT_EQ(parts[0][0].of_item.last, 17u);
  EXPECT_EQ(parts[0][0].own.last, 14u);
  EXPECT_EQ(parts[1][0].own.first, 14u);
}

TEST(KeyShares, SharesAreEvenToABlock) {
  const Deep deep({4000, 1000, 2500}, 1, 2, 4);
  for (uint32_t threads : {2u, 3u, 5u}) {
    for (const auto& mine : deep.parts(threads, 0)) {
      uint32_t keys = 0;
      for (const KeyPart& part : mine) {
        const uint32_t end = deep.spans[deep.items[part.item].sequence].first_position + 1;
        keys += std::min(part.own.last * kKeyBlock, end) - part.own.first * kKeyBlock;
      }
      EXPECT_NEAR(keys, 2 * 7503.0 / threads, kKeyBlock) << threads;
    }
  }
}

TEST(KeyShares, AnyShapeIsTakenOnceAndItsNewKeysByOneThread) {
  std::mt19937 random(7);
  auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  for (uint32_t trial = 0; trial < 2000; ++trial) {
    std::vector<uint32_t> depths(1 + below(4));
    for (uint32_t& depth : depths) depth = below(3000);
    const Deep deep(depths, 1 + below(6), 1 + below(4), 1 + below(5));
    const uint32_t threads = 1 + below(9), window = below(2) ? 1 + below(700) : 0;
    const auto parts = deep.parts(threads, window);
    std::vector<std::vector<KeyPart>> of_item(deep.items.size());
    for (const auto& mine : parts)
      for (const KeyPart& part : mine) of_item[part.item].push_back(part);
    for (uint32_t i = 0; i < of_item.size(); ++i) {
      const AttentionItem& item = deep.items[i];
      const SequenceSpan& span = deep.spans[item.sequence];
      const KeyBlocks all = blocks_of(deep.batch, item, deep.group, window);
      std::vector<KeyPart>& found = of_item[i];
      std::ranges::sort(found, {}, [](const KeyPart& part) { return part.own.first; });
      uint32_t at = all.first;
      for (const KeyPart& part : found) {
        EXPECT_EQ(part.own.first, at);
        EXPECT_EQ(part.first_end, found.front().own.last);
        EXPECT_EQ(part.of_item.first, all.first);
        EXPECT_EQ(part.of_item.last, all.last);
        at = part.own.last;
      }
      EXPECT_EQ(at, all.last);
      EXPECT_LE(found.back().own.first, std::max(span.first_position / kKeyBlock, all.first));
    }
  }
}

}  // namespace
}  // namespace tie::bones
