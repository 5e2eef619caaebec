// The best ids of rows: selection against sorting, masks that begin in the middle of a word, lists merged.
#include "inference/bones/ops/best_ids.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace tie::bones {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Many ties, some minus infinities, infinities and NaN.
std::vector<float> odd_row(size_t n, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> row(n);
  for (float& x : row) {
    x = random() % 3 ? normal(random) : std::round(normal(random));
    if (random() % 50 == 0) x = std::numeric_limits<float>::quiet_NaN();
    if (random() % 50 == 0) x = random() % 8 ? -kInf : kInf;
  }
  return row;
}

std::vector<Candidate> by_sorting(const std::vector<float>& row, size_t k) {
  std::vector<Candidate> all;
  for (size_t i = 0; i < row.size(); ++i)
    if (row[i] > -kInf) all.push_back({row[i], static_cast<int32_t>(i)});
  std::sort(all.begin(), all.end(), better);
  all.resize(std::min(all.size(), k));
  return all;
}

void expect_same(std::span<const Candidate> found, const std::vector<Candidate>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].token, expected[i].token) << i;
    EXPECT_EQ(found[i].logit, expected[i].logit) << i;
  }
}

TEST(BestIds, SelectionIsTheHeadOfTheSortedRow) {
  std::mt19937 random(1);
  TopScratch scratch;
  for (int round = 0; round < 300; ++round) {
    const size_t n = 1 + random() % (round % 4 ? 400 : 9000), k = 1 + random() % kMostBest;
    scratch.reserve(n, k);
    const auto row = odd_row(n, random);
    expect_same(select_top(row, k, scratch), by_sorting(row, k));
  }
}

TEST(BestIds, AMaskMayBeginInTheMiddleOfAWord) {
  std::mt19937 random(2);
  std::vector<uint32_t> mask(20);
  for (uint32_t& word : mask) word = random() % 4 ? static_cast<uint32_t>(random()) : ~0u * (random() % 2);
  for (size_t first = 0; first < 200; first += 1 + random() % 7)
    for (size_t n : {1u, 31u, 32u, 33u, 300u, 600u}) {
      std::vector<float> row(n, 1.0f);
      apply_mask(row, mask, first);
      for (size_t i = 0; i < n; ++i) {
        const size_t bit = first + i;
        const bool allowed = bit / 32 < mask.size() && (mask[bit / 32] >> bit % 32 & 1) != 0;
        ASSERT_EQ(row[i], allowed ? 1.0f : -kInf) << first << " " << i;
      }
    }
}

// The row cut into lists of any width, each with its own best, gives the best of the row.
TEST(BestIds, MergedListsAreTheSelectionOfTheWholeRow) {
  std::mt19937 random(3);
  TopScratch scratch;
  for (int round = 0; round < 200; ++round) {
    const uint32_t lists = 1 + random() % 5, rows = 2, k = 1 + random() % kMostBest;
    std::vector<Candidate> entries(size_t{lists} * rows * kMostBest);
    std::vector<uint32_t> counts(size_t{lists} * rows, 77);  // of the other row: not to be looked at
    const BestTable table{entries.data(), counts.data(), lists, rows};
    std::vector<float> whole;
    for (uint32_t i = 0; i < lists; ++i) {
      const auto part = odd_row(random() % 300, random);
      scratch.reserve(part.size(), k);
      const auto best = select_top(part, k, scratch);
      for (size_t j = 0; j < best.size(); ++j)
        table.list(i, 1)[j] = {best[j].logit, best[j].token + static_cast<int32_t>(whole.size())};
      table.count(i, 1) = static_cast<uint32_t>(best.size());
      whole.insert(whole.end(), part.begin(), part.end());
    }
    Candidate out[kMostBest];
    const uint32_t n = merge_best(table, 1, k, out);
    expect_same({out, n}, by_sorting(whole, k));
  }
}

}  // namespace
}  // namespace tie::bones
