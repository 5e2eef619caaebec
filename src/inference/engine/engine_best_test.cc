// The best ids of a row instead of the row: for random sampling options, seeds, grammars, drafts and schedules the same
// tokens come out, over the fake model, over bones on one rank and on two.
#include <gtest/gtest.h>

#include <random>

#include "inference/bones/communicator/testing/forked_ranks.h"
#include "inference/bones/testing/tiny_model.h"
#include "inference/engine/testing/best_choices.h"

namespace tie::engine {
namespace {

using testing::expect_same_choices;
using testing::RowCounter;

Bytes tiny(const std::string& architecture) {
  bones::testing::TinyModelOptions options;
  options.architecture = architecture;
  options.n_heads = 8;
  options.n_ff = 128;
  return bones::testing::tiny_model(options);
}

TEST(BestChoices, AreThoseOfWholeRowsOverTheFakeModel) {
  testing::FakeModel model({.context = 256, .best = true});
  for (uint32_t seed = 0; seed < 12; ++seed)
    expect_same_choices(model, testing::fake_table(), {.requests = 14, .seed = seed});
  EXPECT_TRUE(model.complaints.empty());
}

class BestChoicesOverBones : public ::testing::TestWithParam<std::string> {};

TEST_P(BestChoicesOverBones, AreThoseOfWholeRowsOnOneRank) {
  auto image = bones::OwnedImage::from_gguf(tiny(GetParam()));
  ASSERT_TRUE(image) << image.error().message;
  bones::ThreadPool pool({.n_threads = 2});
  auto model = bones::Model::attach(image->bytes(), {.pool = &pool});
  ASSERT_TRUE(model) << model.error().message;
  BonesModel forward(std::move(*model));
  for (uint32_t seed = 20; seed < 24; ++seed)
    expect_same_choices(forward, testing::letter_table(forward.config().n_vocab - 20),
                        {.requests = 12, .seed = seed, .pool = &pool});
}

// Two real rank processes.
class TeamModel final : public ForwardModel {
 public:
  explicit TeamModel(bones::testing::ForkedRanks& team) : team_(team) {}
  const bones::ModelConfig& config() const override { return team_.leader().config(); }
  Result<bones::Logits> forward(const bones::Batch& batch, const bones::KvPool& kv) override {
    return team_.leader().forward(batch, kv);
  }
  bool finds_best() const override { return true; }
  std::span<std::byte> kv_memory() override { return team_.leader().kv_memory(); }

 private:
  bones::testing::ForkedRanks& team_;
};

TEST_P(BestChoicesOverBones, AreThoseOfWholeRowsOnTwoRanks) {
  auto team = bones::testing::ForkedRanks::start(
      tiny(GetParam()),
      {.grid = {0, 2, 0, 1}, .max_batch_rows = 512, .max_logit_rows = 80, .max_sequences = 64, .kv_tokens = 4096});
  ASSERT_TRUE(team) << team.error().message;
  TeamModel forward(*team);
  for (uint32_t seed = 40; seed < 44; ++seed)
    expect_same_choices(forward, testing::letter_table(forward.config().n_vocab - 20), {.requests = 12, .seed = seed});
}

INSTANTIATE_TEST_SUITE_P(Families, BestChoicesOverBones, ::testing::Values("llama", "gemma2"));

// What comes whole: else the tests above could compare whole rows with whole rows.
TEST(BestChoices, OnlyRowsThatNeedItComeWhole) {
  struct Case {
    SamplingOptions sampling;
    bool whole;
  };
  const Case cases[] = {{{.temperature = 0}, false},
                        {{.temperature = 1, .top_k = 20}, false},
                        {{.temperature = 1, .top_k = 20, .top_p = 0.8f, .min_p = 0.1f}, false},
                        {{.temperature = 0, .min_tokens = 3}, false},
                        {{.temperature = 1}, true},
                        {{.temperature = 1, .top_p = 0.9f}, true},
                        {{.temperature = 1, .top_k = 64}, true},  // all tokens of this table
                        {{.temperature = 0, .repetition_penalty = 1.1f}, true},
                        {{.temperature = 0, .logit_bias = {{5, 2.0f}}}, true},
                        {{.temperature = 0, .logprobs = true}, true}};
  for (const Case& c : cases) {
    testing::FakeModel model({.context = 256, .best = true});
    RowCounter counter(model);
    RequestSpec spec;
    spec.prompt = {5, 6, 7};
    spec.sampling = c.sampling;
    spec.sampling.max_tokens = 6;
    spec.sampling.ignore_eos = true;
    (void)testing::run_all(counter, testing::fake_table(), {spec}, {});
    EXPECT_EQ(counter.best == 0, c.whole) << (&c - cases);
    EXPECT_EQ(counter.whole > 0, c.whole) << (&c - cases);
  }
}

}  // namespace
}  // namespace tie::engine
