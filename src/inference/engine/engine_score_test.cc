// Log-probabilities of a prompt's tokens, each against a request of its own that draws that very token: bias makes it
// certain, and what is reported is the model's view before any bias.
#include <gtest/gtest.h>

#include "inference/engine/engine_core.h"
#include "inference/engine/testing/fake_model.h"
#include "inference/engine/testing/memory_transfer.h"

namespace tie::engine {
namespace {

using testing::CollectingSink;
using testing::FakeModel;
using testing::pattern;

constexpr uint32_t kTop = 3;

EngineOptions options(SchedulerLimits limits, size_t kv_bytes = 1 << 20) {
  EngineOptions out;
  out.limits = limits;
  out.kv_bytes = kv_bytes;
  out.block_tokens = 16;
  out.target_step_us = 0;
  return out;
}

std::shared_ptr<CollectingSink> add(EngineCore& core, RequestSpec spec) {
  auto sink = std::make_shared<CollectingSink>();
  spec.sink = sink;
  auto request = core.prepare(std::move(spec));
  EXPECT_TRUE(request) << request.error().message;
  EXPECT_TRUE(core.add(std::move(*request)));
  return sink;
}

RequestSpec scored(std::vector<int32_t> prompt, uint32_t max_tokens, uint32_t n = 1) {
  return {.prompt = std::move(prompt),
          .sampling = {.temperature = 0,
                       .n = n,
                       .max_tokens = max_tokens,
                       .ignore_eos = true,
                       .logprobs = true,
                       .top_logprobs = kTop,
                       .prompt_logprobs = true}};
}

// The prompt's scores by the other path: one request for each token, none of which is a scored one.
std::vector<TokenLogprobs> one_by_one(const std::vector<int32_t>& prompt) {
  FakeModel model;
  auto core = *EngineCore::create(model, testing::fake_table(), options({}));
  std::vector<TokenLogprobs> out;
  for (size_t i = 1; i < prompt.size(); ++i) {
    RequestSpec spec{.prompt = {prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(i)},
                     .sampling = {.temperature = 0,
                                  .logit_bias = {{prompt[i], 100.0f}},
                                  .max_tokens = 1,
                                  .ignore_eos = true,
                                  .logprobs = true,
                                  .top_logprobs = kTop}};
    auto sink = add(*core, std::move(spec));
    EXPECT_TRUE(testing::run_to_end(*core));
    EXPECT_EQ(sink->samples[0].tokens, std::vector<int32_t>{prompt[i]});
    out.push_back(sink->samples[0].logprobs.at(0));
  }
  return out;
}

void expect_scores(const CollectingSink& sink, const std::vector<int32_t>& prompt) {
  auto wanted = one_by_one(prompt);
  ASSERT_EQ(sink.prompt_logprobs.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    const TokenLogprobs &got = sink.prompt_logprobs[i], &want = wanted[i];
    EXPECT_EQ(got.token, prompt[i + 1]) << i;
    EXPECT_FLOAT_EQ(got.logprob, want.logprob) << i;
    ASSERT_EQ(got.n_top, kTop);
    for (uint32_t t = 0; t < kTop; ++t) {
      EXPECT_EQ(got.top[t].token, want.top[t].token) << i;
      EXPECT_FLOAT_EQ(got.top[t].logprob, want.top[t].logprob) << i;
    }
  }
  for (auto& complaint : sink.complaints) ADD_FAILURE() << complaint;
}

TEST(PromptScores, AreThoseOfEachTokenDrawnByItself) {
  FakeModel model;
  auto core = *EngineCore::create(model, testing::fake_table(), options({}));
  auto prompt = pattern(150, 1);  // over two steps' rows of logits
  auto sink = add(*core, scored(prompt, 4));
  ASSERT_TRUE(testing::run_to_end(*core));
  expect_scores(*sink, prompt);
  // The answer is that of a request which wants no scores.
  RequestSpec plain = scored(prompt, 4);
  plain.sampling.prompt_logprobs = false;
  auto other = add(*core, std::move(plain));
  ASSERT_TRUE(testing::run_to_end(*core));
  EXPECT_EQ(sink->samples[0].tokens, other->samples[0].tokens);
  EXPECT_TRUE(other->prompt_logprobs.empty());
  EXPECT_TRUE(model.complaints.empty()) << model.complaints.front();
}

TEST(PromptScores, WithoutAnAnswerThePromptIsReadButForItsLastToken) {
  FakeModel model;
  auto core = *EngineCore::create(model, testing::fake_table(), options({}));
  auto prompt = pattern(100, 2);
  auto sink = add(*core, scored(prompt, 0, 2));
  ASSERT_TRUE(testing::run_to_end(*core));
  expect_scores(*sink, prompt);
  EXPECT_EQ(model.rows_computed, prompt.size() - 1);
  EXPECT_EQ(sink->usage.completion_tokens, 0u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(sink->samples[static_cast<size_t>(i)].finish, Finish::kLength);
    EXPECT_TRUE(sink->samples[static_cast<size_t>(i)].tokens.empty());
  }
  core->settle();
  EXPECT_EQ(core->kv().free_blocks(), core->kv().n_blocks());
  auto single = add(*core, scored({5}, 0));  // nothing stands before its only token
  EXPECT_TRUE(single->ended);
  EXPECT_TRUE(single->prompt_logprobs.empty());
}

TEST(PromptScores, ManyTogetherStayWithinTheRowsOfLogitsAndDecodesGoOn) {
  FakeModel model;
  SchedulerLimits limits{.max_rows = 64, .max_sequences = 6};
  auto core = *EngineCore::create(model, testing::fake_table(), options(limits));
  RequestSpec decoding = scored(pattern(4, 9), 100);
  decoding.sampling.prompt_logprobs = false;
  auto busy = add(*core, std::move(decoding));
  core->step(0);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int32_t i = 0; i < 5; ++i) {
    prompts.push_back(pattern(30 + 11 * static_cast<size_t>(i), i));
    sinks.push_back(add(*core, scored(prompts.back(), static_cast<uint32_t>(i % 3))));
  }
  for (int i = 0; i < 10; ++i) {
    size_t before = busy->samples[0].tokens.size();
    ASSERT_TRUE(core->step(i));
    EXPECT_GT(busy->samples[0].tokens.size(), before) << "a decode waits for no scores";
  }
  ASSERT_TRUE(testing::run_to_end(*core));
  for (size_t i = 0; i < prompts.size(); ++i) expect_scores(*sinks[i], prompts[i]);
  EXPECT_GT(model.most_logit_rows, 6u) << "rows that drafts do not use are used";
  EXPECT_LE(model.most_logit_rows, core->scheduler().logit_capacity());
  EXPECT_TRUE(model.complaints.empty()) << model.complaints.front();
}

TEST(PromptScores, APreemptedOneIsReadAgainAndScoredOnce) {
  FakeModel model;
  // A row of logits each, so the second prompt is still being scored when the first answer needs its blocks.
  SchedulerLimits limits{.max_rows = 48, .max_sequences = 2, .max_draft_sequences = 0};
  auto core = *EngineCore::create(model, testing::fake_table(), options(limits, size_t{14} * 256));
  RequestSpec growing = scored(pattern(30, 1), 150);
  growing.sampling.prompt_logprobs = false;
  auto first = add(*core, std::move(growing));
  auto prompt = pattern(130, 2);
  auto second = add(*core, scored(prompt, 20));
  while (core->scheduler().n_preemptions() == 0) ASSERT_TRUE(core->step(0)) << "the test is about nothing";
  size_t scored_before = second->prompt_logprobs.size();
  EXPECT_GT(scored_before, 0u);
  EXPECT_LT(scored_before, prompt.size() - 1);
  ASSERT_TRUE(testing::run_to_end(*core));
  expect_scores(*second, prompt);
  EXPECT_EQ(second->samples[0].tokens.size(), 20u);
  EXPECT_EQ(first->samples[0].tokens.size(), 150u);
  EXPECT_TRUE(model.complaints.empty()) << model.complaints.front();
}

TEST(PromptScores, AConsumerThatDoesNotReadPausesThem) {
  FakeModel model;
  auto core = *EngineCore::create(model, testing::fake_table(), options({.max_sequences = 4}));
  auto prompt = pattern(80, 3);
  auto sink = add(*core, scored(prompt, 0));
  ASSERT_TRUE(core->step(0));
  size_t first = sink->prompt_logprobs.size();
  sink->room = false;
  EXPECT_FALSE(core->step(1));
  EXPECT_EQ(sink->prompt_logprobs.size(), first);
  sink->room = true;
  ASSERT_TRUE(testing::run_to_end(*core));
  expect_scores(*sink, prompt);
}

TEST(PromptScores, NothingOfThePromptComesFromAnEarlierTurn) {
  FakeModel model;
  auto core = *EngineCore::create(model, testing::fake_table(), options({}));
  auto prompt = pattern(64, 4);
  RequestSpec spec = scored(prompt, 1);
  auto kept = std::make_shared<testing::MemoryExport>();
  spec.kv_export = kept;
  auto earlier = add(*core, std::move(spec));
  ASSERT_TRUE(testing::run_to_end(*core));
  ASSERT_EQ(kept->blocks.size(), 4u);
  spec = scored(prompt, 1);
  spec.kv_import = std::make_shared<testing::MemoryImport>(kept->blocks);
  auto sink = add(*core, std::move(spec));
  ASSERT_TRUE(testing::run_to_end(*core));
  expect_scores(*sink, prompt);
  EXPECT_TRUE(sink->usage.import_refused);
  EXPECT_EQ(sink->usage.imported_tokens, 0u);
}

}  // namespace
}  // namespace tie::engine
