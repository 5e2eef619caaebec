// A forward pass that is asked for the best ids of its rows, on one rank and on several: they are those of the whole
// rows, and rows that are wanted whole beside them are what they are without.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <random>

#include "inference/bones/communicator/testing/forked_ranks.h"
#include "inference/bones/testing/tiny_model.h"

namespace tie::bones {
namespace {

constexpr uint32_t kVocab = 300, kRows = 12;

Bytes file_of(const std::string& family) {
  testing::TinyModelOptions o;
  o.architecture = family;
  o.n_vocab = kVocab;
  o.n_layers = 4;
  o.n_heads = 8;
  o.n_ff = 128;
  return testing::tiny_model(o);
}

using Forward = std::function<Result<Logits>(const Batch&)>;

// Two sequences of six rows each, logits of all; the second pass writes the same keys and values again.
void expect_best_of_whole_rows(const Forward& forward, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(kRows);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random() % kVocab);
  const std::vector<uint32_t> first{0}, second{1};
  const SequenceSpan spans[] = {{0, 6, 0, first}, {6, 6, 0, second}};
  std::vector<uint32_t> rows(kRows);
  std::iota(rows.begin(), rows.end(), 0);
  const auto whole = forward({tokens, spans, rows, {}});
  ASSERT_TRUE(whole) << whole.error().message;
  std::vector<std::vector<float>> values;
  for (uint32_t i = 0; i < kRows; ++i) values.emplace_back(whole->row(i).begin(), whole->row(i).end());
  std::vector<std::vector<uint32_t>> masks(kRows, std::vector<uint32_t>((kVocab + 31) / 32));
  std::vector<BestOf> wants(kRows);
  for (uint32_t i = 0; i < kRows; ++i) {
    for (uint32_t& word : masks[i]) word = random() % 3 ? static_cast<uint32_t>(random()) : 0;
    wants[i] = {.k = random() % 4 ? 1 + static_cast<uint32_t>(random() % kMostBest) : 0,
                .below = random() % 2 ? UINT32_MAX : static_cast<uint32_t>(random() % (kVocab + 1)),
                .mask = random() % 2 ? masks[i].data() : nullptr};
  }
  const auto found = forward({tokens, spans, rows, {}, wants});
  ASSERT_TRUE(found) << found.error().message;
  TopScratch scratch;
  for (uint32_t i = 0; i < kRows; ++i) {
    if (wants[i].k == 0) {
      EXPECT_TRUE(std::equal(values[i].begin(), values[i].end(), found->row(i).begin())) << i;
      EXPECT_TRUE(found->best.row(i).empty());
      continue;
    }
    if (wants[i].mask) apply_mask(values[i], masks[i]);
    const auto expected = select_top(std::span(values[i]).first(std::min(wants[i].below, kVocab)), wants[i].k, scratch);
    const auto best = found->best.row(i);
    ASSERT_EQ(best.size(), expected.size()) << i;
    for (size_t j = 0; j < best.size(); ++j) {
      EXPECT_EQ(best[j].token, expected[j].token) << i << " " << j;
      EXPECT_EQ(best[j].logit, expected[j].logit) << i << " " << j;
    }
  }
}

class BestOfRows : public ::testing::TestWithParam<std::string> {};

TEST_P(BestOfRows, AreThoseOfTheWholeRowsOnOneRank) {
  auto image = OwnedImage::from_gguf(file_of(GetParam()));
  ASSERT_TRUE(image) << image.error().message;
  for (uint32_t threads : {1u, 3u}) {
    ThreadPool pool({.n_threads = threads});
    auto model = Model::attach(image->bytes(), {.pool = &pool, .max_batch_rows = 64});
    ASSERT_TRUE(model) << model.error().message;
    const auto layout = KvLayout::for_model(model->config());
    ASSERT_TRUE(layout);
    std::vector<std::byte> memory(2 * layout->block_bytes() + 64);
    auto* base = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
    const KvPool kv{base, 2, *layout};
    for (uint32_t seed = 0; seed < 6; ++seed)
      expect_best_of_whole_rows([&](const Batch& batch) { return model->forward(batch, kv); }, seed);
  }
}

TEST_P(BestOfRows, AreThoseOfTheWholeRowsOverRanks) {
  const Bytes file = file_of(GetParam());
  for (RankPlace grid : {RankPlace{0, 2, 0, 1}, {0, 4, 0, 1}, {0, 1, 0, 2}, {0, 2, 0, 2}})
    for (uint32_t threads : {1u, 2u}) {
      auto team = testing::ForkedRanks::start(file, {.grid = grid, .threads_per_rank = threads});
      ASSERT_TRUE(team) << team.error().message;
      for (uint32_t seed = 0; seed < 4; ++seed)
        expect_best_of_whole_rows([&](const Batch& batch) { return team->leader().forward(batch, team->kv()); }, seed);
    }
}

INSTANTIATE_TEST_SUITE_P(Families, BestOfRows, ::testing::Values("llama", "gemma2"));

TEST(BestOfRows, WantsThatFitNoBatchAreRefused) {
  auto image = OwnedImage::from_gguf(file_of("llama"));
  ASSERT_TRUE(image);
  ThreadPool pool({.n_threads = 1});
  auto model = Model::attach(image->bytes(), {.pool = &pool});
  ASSERT_TRUE(model);
  const auto layout = KvLayout::for_model(model->config());
  std::vector<std::byte> memory(layout->block_bytes() + 64);
  auto* base = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  const std::vector<uint32_t> table{0}, rows{0, 1};
  const SequenceSpan span{0, 2, 0, table};
  const std::vector<int32_t> tokens{1, 2};
  for (const std::vector<BestOf>& wants :
       {std::vector<BestOf>{{.k = 1}}, {{.k = 1}, {.k = kMostBest + 1}}, {{.k = 1}, {.k = 1}, {.k = 1}}}) {
    const auto refused = model->forward({tokens, {&span, 1}, rows, {}, wants}, {base, 1, *layout});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kBadRequest);
  }
}

}  // namespace
}  // namespace tie::bones
