// Properties of whole schedules: batching, joining, preemption, fairness, and random mixes of everything against each
// request run alone.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/clock.h"
#include "inference/engine/engine_core.h"
#include "inference/engine/testing/fake_model.h"

namespace tie::engine {
namespace {

using testing::CollectingSink;
using testing::FakeModel;

EngineOptions options_for_tests(size_t n_blocks = 1000) {
  EngineOptions options;
  options.block_tokens = 16;
  options.kv_bytes = n_blocks * 16 * 4 * 2 * 2;  // one head of 4 dimensions, K and V, two bytes each
  options.target_step_us = 0;
  return options;
}

std::shared_ptr<CollectingSink> add(EngineCore& core, RequestSpec spec,
                                    std::shared_ptr<RequestHandle>* handle = nullptr) {
  auto sink = std::make_shared<CollectingSink>();
  spec.sink = sink;
  auto request = core.prepare(std::move(spec));
  EXPECT_TRUE(request) << request.error().message;
  if (handle) *handle = (*request)->handle;
  EXPECT_TRUE(core.add(std::move(*request)));
  return sink;
}

RequestSpec greedy(std::vector<int32_t> prompt, uint32_t max_tokens) {
  return {.prompt = std::move(prompt), .sampling = {.temperature = 0, .max_tokens = max_tokens, .ignore_eos = true}};
}

TEST(Schedule, ThirtyTwoRequestsShareOneForwardPassAndALateOneJoinsThem) {
  FakeModel model;
  auto options = options_for_tests();
  std::vector<std::vector<StepRow>> steps;
  options.trace = [&](uint64_t, std::span<const StepRow> rows) { steps.emplace_back(rows.begin(), rows.end()); };
  auto core = *EngineCore::create(model, testing::fake_table(), options);
  for (int32_t i = 0; i < 32; ++i) add(*core, greedy({3 + i, 4}, 30));
  for (int i = 0; i < 10; ++i) core->step(i);
  ASSERT_EQ(steps.back().size(), 32u);
  for (const auto& row : steps.back()) EXPECT_TRUE(row.decode && row.n_rows == 1);
  std::shared_ptr<RequestHandle> late;
  auto late_sink = add(*core, greedy(std::vector<int32_t>(20, 9), 30), &late);
  core->step(11);
  ASSERT_EQ(steps.back().size(), 33u);
  EXPECT_EQ(steps.back().back().request_id, late->id);
  EXPECT_EQ(steps.back().back().n_rows, 20u);
  EXPECT_FALSE(steps.back().back().decode);
  core->step(12);
  EXPECT_EQ(steps.back().size(), 33u);
  EXPECT_TRUE(steps.back().back().decode);
  EXPECT_TRUE(testing::run_to_end(*core));
  EXPECT_EQ(late_sink->samples[0].tokens.size(), 30u);
}

TEST(Schedule, DecodesGoOnWhileALongPromptIsReadInChunks) {
  FakeModel model({.context = 4096});
  auto options = options_for_tests();
  options.limits.max_rows = 64;
  auto core = *EngineCore::create(model, testing::fake_table(), options);
  auto decoding = add(*core, greedy({3}, 100));
  core->step(0);
  auto longer = add(*core, greedy(std::vector<int32_t>(2000, 5), 3));
  for (int i = 1; i <= 20; ++i) {
    size_t before = decoding->samples[0].tokens.size();
    core->step(i);
    EXPECT_EQ(decoding->samples[0].tokens.size(), before + 1);
  }
  EXPECT_TRUE(testing::run_to_end(*core));
  EXPECT_EQ(longer->samples[0].tokens.size(), 3u);
}

TEST(Schedule, AShortPromptOvertakesALongOneThatStillAdvances) {
  FakeModel model({.context = 8192});
  auto options = options_for_tests();
  options.limits.max_rows = 128;
  auto core = *EngineCore::create(model, testing::fake_table(), options);
  auto longer = add(*core, greedy(std::vector<int32_t>(4000, 5), 3));
  core->step(0);
  auto shorter = add(*core, greedy(std::vector<int32_t>(40, 6), 3));
  core->step(1);
  EXPECT_EQ(shorter->samples[0].tokens.size(), 1u);
  EXPECT_TRUE(testing::run_to_end(*core, 80));
  EXPECT_TRUE(longer->ended);
}

TEST(Schedule, PreemptedRequestsCompleteUnchanged) {
  std::map<int32_t, std::vector<int32_t>> alone;
  for (int32_t i = 0; i < 12; ++i) {
    FakeModel model;
    auto core = *EngineCore::create(model, testing::fake_table(), options_for_tests());
    auto sink = add(*core, greedy({3 + i, 7, 8}, 150));
    ASSERT_TRUE(testing::run_to_end(*core));
    alone[i] = sink->samples[0].tokens;
  }
  FakeModel model;
  auto core = *EngineCore::create(model, testing::fake_table(), options_for_tests(20));  // room for two at full length
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int32_t i = 0; i < 12; ++i) sinks.push_back(add(*core, greedy({3 + i, 7, 8}, 150)));
  ASSERT_TRUE(testing::run_to_end(*core));
  EXPECT_GT(core->scheduler().n_preemptions(), 0u);
  for (int32_t i = 0; i < 12; ++i) EXPECT_EQ(sinks[static_cast<size_t>(i)]->samples[0].tokens, alone[i]) << i;
  EXPECT_TRUE(model.complaints.empty()) << model.complaints.front();
}

TEST(Schedule, UrgentRequestsGoFirstAndWaitingWins) {
  FakeModel model;
  auto options = options_for_tests();
  options.limits.max_sequences = 1;
  auto core = *EngineCore::create(model, testing::fake_table(), options);
  auto first = add(*core, greedy({3}, 5));
  core->step(monotonic_us());
  auto lazy = greedy({4}, 5), urgent = greedy({5}, 5);
  lazy.priority = 9;
  urgent.priority = 1;
  auto lazy_sink = add(*core, lazy);
  auto urgent_sink = add(*core, urgent);
  int64_t now = monotonic_us();
  while (!urgent_sink->ended) core->step(now);
  EXPECT_FALSE(lazy_sink->ended);
  // A stream of urgent requests does not keep the other out for ever.
  for (int i = 1; i < 40 && !lazy_sink->ended; ++i) {
    auto again = add(*core, urgent);
    (*core).step(now + i * 1'000'000);
    for (int j = 0; j < 8; ++j) core->step(now + i * 1'000'000);
  }
  EXPECT_TRUE(lazy_sink->ended);
  EXPECT_TRUE(testing::run_to_end(*core));
}

RequestSpec random_request(std::mt19937& rng) {
  RequestSpec spec;
  uint32_t n = 1 + rng() % (rng() % 4 == 0 ? 120 : 20);
  const uint32_t letters = rng() % 3 ? 60 : 2;  // few: prompts that drafts continue
  for (uint32_t i = 0; i < n; ++i) spec.prompt.push_back(static_cast<int32_t>(3 + rng() % letters));
  auto& o = spec.sampling;
  o.temperature = rng() % 2 ? 0.0f : 1.0f;
  o.top_p = rng() % 3 ? 1.0f : 0.8f;
  o.top_k = rng() % 4 ? 0 : 10;
  o.repetition_penalty = rng() % 4 ? 1.0f : 1.2f;
  o.frequency_penalty = rng() % 4 ? 0.0f : 0.5f;
  o.seed = rng() % 1000;
  o.n = rng() % 5 ? 1 : 1 + rng() % 4;
  o.max_tokens = 1 + rng() % 80;
  o.min_tokens = rng() % 5 ? 0 : rng() % 30;
  o.ignore_eos = rng() % 2;
  o.logprobs = rng() % 4 == 0;
  o.top_logprobs = o.logprobs ? rng() % 5 : 0;
  o.prompt_logprobs = o.logprobs && rng() % 2;
  if (o.prompt_logprobs && rng() % 3 == 0) o.max_tokens = 0;
  if (rng() % 2) o.stop = {std::string(1 + rng() % 2, static_cast<char>('a' + rng() % 26)), "xy"};
  if (rng() % 4 == 0) spec.grammar = "";
  spec.priority = rng() % 10;
  return spec;
}

struct Finished {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<Finish> finish;
  std::vector<uint32_t> trim;
  std::vector<std::pair<int32_t, float>> scores;
};

Finished result_of(const CollectingSink& sink, uint32_t n) {
  Finished f;
  for (uint32_t i = 0; i < n; ++i) {
    f.tokens.push_back(sink.samples[i].tokens);
    f.finish.push_back(sink.samples[i].finish);
    f.trim.push_back(sink.samples[i].trim_bytes);
  }
  for (const TokenLogprobs& score : sink.prompt_logprobs) f.scores.emplace_back(score.token, score.logprob);
  return f;
}

Finished alone(const RequestSpec& spec) {
  FakeModel model;
  auto options = options_for_tests();
  options.limits.max_draft_sequences = 0;
  auto core = *EngineCore::create(model, testing::fake_table(), options);
  auto sink = add(*core, spec);
  EXPECT_TRUE(testing::run_to_end(*core));
  return result_of(*sink, spec.sampling.n);
}

// Everything at once, over many seeds: small pools, chunks of odd sizes, cancellations, consumers that stall. Every
// request that is not cancelled ends with the text it has alone; no block is lost; nothing waits for ever.
TEST(Schedule, RandomMixesGiveEachRequestTheTextItHasAlone) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 rng(seed);
    FakeModel model({.remembers = seed % 3 ? 0u : 3u, .best = seed % 2 == 1});
    auto options = options_for_tests(16 + rng() % 60);
    options.limits.max_rows = 16 + rng() % 100;
    options.limits.max_sequences = 4 + rng() % 20;
    options.limits.max_draft_sequences = rng() % 3;
    auto core = *EngineCore::create(model, testing::fake_table(), options);
    struct Running {
      RequestSpec spec;
      std::shared_ptr<CollectingSink> sink;
      std::shared_ptr<RequestHandle> handle;
      bool cancelled = false;
    };
    std::vector<Running> all;
    int64_t now = monotonic_us();
    uint32_t steps = 0;
    while ((all.size() < 30 || !core->idle()) && ++steps < 20'000) {
      if (all.size() < 30 && rng() % 3 == 0) {
        Running r{random_request(rng)};
        r.sink = add(*core, r.spec, &r.handle);
        all.push_back(std::move(r));
      }
      if (!all.empty() && rng() % 40 == 0) {
        auto& r = all[rng() % all.size()];
        r.handle->cancelled = true;
        r.cancelled = true;
      }
      if (!all.empty() && rng() % 20 == 0) all[rng() % all.size()].sink->room = false;
      if (rng() % 10 == 0)
        for (auto& r : all) r.sink->room = true;
      core->step(now + steps * 1000);
    }
    ASSERT_TRUE(core->idle()) << "something never ended";
    core->settle();
    EXPECT_EQ(core->kv().free_blocks(), core->kv().n_blocks());
    for (auto& c : model.complaints) FAIL() << c;
    EXPECT_LE(model.most_logit_rows, core->scheduler().logit_capacity());
    for (size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(i);
      auto& r = all[i];
      for (auto& c : r.sink->complaints) ADD_FAILURE() << c;
      EXPECT_TRUE(r.sink->ended);
      if (r.cancelled) continue;
      if (r.spec.sampling.prompt_logprobs) EXPECT_EQ(r.sink->prompt_logprobs.size(), r.spec.prompt.size() - 1);
      if (seed % 3 == 0) continue;  // a forgetful model has other texts; there only the bookkeeping is checked
      auto expected = alone(r.spec), got = result_of(*r.sink, r.spec.sampling.n);
      ASSERT_EQ(got.tokens, expected.tokens);
      ASSERT_EQ(got.finish, expected.finish);
      ASSERT_EQ(got.trim, expected.trim);
      ASSERT_EQ(got.scores, expected.scores);
    }
  }
}

}  // namespace
}  // namespace tie::engine
