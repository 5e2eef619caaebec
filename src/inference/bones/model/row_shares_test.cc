#include "inference/bones/model/row_shares.h"

#include <gtest/gtest.h>

#include <vector>

#include "inference/bones/kernels/tile.h"

namespace tie::bones {
namespace {

ModelConfig small_model() {
  ModelConfig c;
  c.n_embd = 576, c.n_ff = 1536, c.n_heads = 9, c.n_kv_heads = 3, c.head_dim = 64, c.n_layers = 30;
  return c;
}

struct Sequences {
  std::vector<SequenceSpan> spans;
  std::vector<int32_t> tokens;
  void add(uint32_t n_rows, uint32_t depth) {
    spans.push_back({static_cast<uint32_t>(tokens.size()), n_rows, depth, {}});
    tokens.resize(tokens.size() + n_rows);
  }
  RowShares plan(uint32_t n_threads, uint32_t (*tile_rows_of)(uint32_t) = nullptr,
                 const ModelConfig& config = small_model()) const {
    return plan_rows(config, {tokens, spans, {}, {}}, n_threads, tile_rows_of);
  }
};

Sequences decode(uint32_t n, uint32_t depth) {
  Sequences out;
  for (uint32_t i = 0; i < n; ++i) out.add(1, depth);
  return out;
}

TEST(RowShares, ALargeBatchOfEvenSequencesIsDividedByThem) {
  const RowShares shares = decode(32, 300).plan(2);
  EXPECT_TRUE(shares.apart);
  EXPECT_TRUE(shares.whole);
  EXPECT_EQ(shares.tile_rows, 8u);
  EXPECT_EQ(shares.first_row(0), 0u);
  EXPECT_EQ(shares.first_row(1), 16u);
  EXPECT_EQ(shares.first_row(2), 32u);
}

TEST(RowShares, FewRowsAThreadAreDividedByColumns) {
  EXPECT_FALSE(decode(15, 0).plan(2).apart);
  EXPECT_TRUE(decode(16, 0).plan(2).apart);
  EXPECT_FALSE(decode(16, 0).plan(3).apart);
  EXPECT_FALSE(decode(64, 0).plan(1).apart);
  EXPECT_EQ(decode(15, 0).plan(2).tile_rows, rows_per_tile(15));
}

TEST(RowShares, OneThreadIsNotToAttendMuchLonger) {
  Sequences uneven = decode(8, 2000);
  for (int i = 0; i < 8; ++i) uneven.add(1, 10);
  EXPECT_TRUE(uneven.plan(2).apart);
  EXPECT_FALSE(uneven.plan(2).whole);
  Sequences mixed;
  for (int i = 0; i < 16; ++i) mixed.add(1, i % 2 == 0 ? 2000 : 10);
  EXPECT_TRUE(mixed.plan(2).whole);
}

TEST(RowShares, AThreadDoesNotAttendAloneToPartOfASequence) {
  Sequences cut;
  cut.add(7, 0), cut.add(3, 0);  // rows 7 to 9; the second thread's would begin at 8
  for (int i = 0; i < 6; ++i) cut.add(1, 0);
  EXPECT_TRUE(cut.plan(2).apart);
  EXPECT_FALSE(cut.plan(2).whole);
}

TEST(RowShares, APromptIsDividedButNotWhole) {
  for (const uint32_t rows : {16u, 100u, 512u}) {
    Sequences prompt;
    prompt.add(rows, 0);
    EXPECT_TRUE(prompt.plan(2).apart);
    EXPECT_FALSE(prompt.plan(2).whole);
  }
}

// 150 rows in tiles of 13 would be 78 and 72: one thread's rows for panels, the other's for fused tiles.
TEST(RowShares, SharesOnBothSidesOfAKernelsLimitStayTogether) {
  EXPECT_FALSE(decode(150, 0).plan(2).apart);
}

TEST(RowShares, TilesOfOtherKernelsAndExpertsStayTogether) {
  const auto sixteen = [](uint32_t) -> uint32_t { return 16; };
  EXPECT_FALSE(decode(64, 0).plan(2, sixteen).apart);
  EXPECT_EQ(decode(64, 0).plan(2, sixteen).tile_rows, 16u);
  ModelConfig experts = small_model();
  experts.n_experts = 4;
  EXPECT_FALSE(decode(64, 0).plan(2, nullptr, experts).apart);
}

TEST(RowShares, EveryRowIsSomeThreadsAndSharesBeginAtTiles) {
  for (const uint32_t threads : {2u, 3u, 4u, 5u, 10u, 13u, 64u}) {
    for (uint32_t rows = 1; rows < 600; ++rows) {
      const RowShares shares = decode(rows, 5).plan(threads);
      EXPECT_EQ(shares.first_row(0), 0u);
      EXPECT_EQ(shares.first_row(threads), rows);
      for (uint32_t t = 0; t < threads; ++t) {
        EXPECT_LE(shares.first_row(t), shares.first_row(t + 1));
        if (shares.first_row(t) < rows) {
          EXPECT_EQ(shares.first_row(t) % shares.tile_rows, 0u);
        }
        if (shares.apart) {
          const uint32_t own = shares.first_row(t + 1) - shares.first_row(t);
          EXPECT_GT(own, 0u) << rows << " rows, " << threads << " threads";
          if (own > kFusedRows) {
            EXPECT_GE(shares.tile_rows, kMaxTileRows);
          } else {
            EXPECT_LE(shares.tile_rows, kMaxTileRows);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tie::bones
