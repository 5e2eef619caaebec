// One behaviour of the engine at a time, over the deterministic fake model.
#include "inference/engine/engine_core.h"

#include <gtest/gtest.h>

#include <set>

#include "base/clock.h"
#include "inference/engine/testing/fake_model.h"

namespace tie::engine {
namespace {

using testing::CollectingSink;
using testing::FakeModel;
using testing::kFakeTokens;

struct Bench {
  explicit Bench(EngineOptions options = {}, testing::FakeModelOptions model_options = {}) : model(model_options) {
    if (options.kv_bytes == EngineOptions{}.kv_bytes) options.kv_bytes = 1 << 20;
    options.block_tokens = 16;
    options.target_step_us = 0;
    core = *EngineCore::create(model, testing::fake_table(), std::move(options));
  }
  ~Bench() {
    EXPECT_EQ(core->kv().free_blocks(), core->kv().n_blocks()) << "blocks are lost";
    for (auto& c : model.complaints) ADD_FAILURE() << c;
  }
  Result<std::shared_ptr<RequestHandle>> add(RequestSpec spec, std::shared_ptr<CollectingSink> sink) {
    spec.sink = std::move(sink);
    TIE_TRY(auto request, core->prepare(std::move(spec)));
    auto handle = request->handle;
    TIE_CHECK_OK(core->add(std::move(request)));
    return handle;
  }
  std::shared_ptr<CollectingSink> run(RequestSpec spec) {
    auto sink = std::make_shared<CollectingSink>();
    auto added = add(std::move(spec), sink);
    EXPECT_TRUE(added) << added.error().message;
    EXPECT_TRUE(testing::run_to_end(*core));
    for (auto& c : sink->complaints) ADD_FAILURE() << c;
    return sink;
  }
  FakeModel model;
  std::unique_ptr<EngineCore> core;
};

RequestSpec greedy(std::vector<int32_t> prompt, uint32_t max_tokens) {
  return {.prompt = std::move(prompt), .sampling = {.temperature = 0, .max_tokens = max_tokens, .ignore_eos = true}};
}

TEST(EngineCore, GeneratesUpToMaxTokensAndCountsThem) {
  Bench b;
  auto sink = b.run(greedy({3, 4, 5}, 20));
  EXPECT_EQ(sink->samples[0].tokens.size(), 20u);
  EXPECT_EQ(sink->samples[0].finish, Finish::kLength);
  EXPECT_EQ(sink->usage.prompt_tokens, 3u);
  EXPECT_EQ(sink->usage.completion_tokens, 20u);
  for (int32_t token : sink->samples[0].tokens)
    EXPECT_LT(token, static_cast<int32_t>(kFakeTokens)) << "a padding id was sampled";
}

TEST(EngineCore, StreamsOneOutputAStep) {
  Bench b;
  EXPECT_EQ(b.run(greedy({3, 4, 5}, 20))->samples[0].outputs, 20u);
}

TEST(EngineCore, WithoutMaxTokensTheContextIsTheBound) {
  Bench b;
  auto spec = greedy(std::vector<int32_t>(250, 3), 0);
  spec.sampling.max_tokens.reset();
  auto sink = b.run(spec);
  EXPECT_EQ(sink->samples[0].tokens.size(), 6u);
  EXPECT_EQ(sink->samples[0].finish, Finish::kLength);
}

TEST(EngineCore, APromptOverTheContextNamesBothNumbers) {
  Bench b;
  auto added = b.add(greedy(std::vector<int32_t>(300, 3), 5), std::make_shared<CollectingSink>());
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().code, Code::kContextExceeded);
  EXPECT_NE(added.error().message.find("300"), std::string::npos);
  EXPECT_NE(added.error().message.find("256"), std::string::npos);
}

TEST(EngineCore, BadIdsAndEmptyPromptsAreRefused) {
  Bench b;
  for (auto prompt : {std::vector<int32_t>{}, {-1}, {static_cast<int32_t>(kFakeTokens)}}) {
    auto added = b.add(greedy(prompt, 5), std::make_shared<CollectingSink>());
    ASSERT_FALSE(added);
    EXPECT_EQ(added.error().code, Code::kBadRequest);
  }
}

TEST(EngineCore, MaxTokensZeroEndsAtOnce) {
  Bench b;
  auto sink = b.run(greedy({3}, 0));
  EXPECT_EQ(sink->samples[0].finish, Finish::kLength);
  EXPECT_EQ(b.model.passes, 0u);
}

TEST(EngineCore, AnyEndTokenStopsAndIsNotSent) {
  Bench b;
  std::set<int32_t> ended_by;
  for (int32_t first = 3; first < 60; ++first) {
    auto spec = greedy({first, 3}, 250);
    spec.sampling.ignore_eos = false;
    auto sink = b.run(spec);
    for (int32_t token : sink->samples[0].tokens) EXPECT_GT(token, 2 - (token == 0 ? 3 : 0));
    if (sink->samples[0].finish == Finish::kStop) {
      EXPECT_EQ(sink->usage.completion_tokens, sink->samples[0].tokens.size() + 1);
      ended_by.insert(static_cast<int32_t>(sink->samples[0].tokens.size()));
    }
  }
  EXPECT_GT(ended_by.size(), 10u);
}

TEST(EngineCore, MinTokensKeepsEndTokensAway) {
  Bench b;
  for (int32_t first = 3; first < 40; ++first) {
    auto spec = greedy({first}, 60);
    spec.sampling.ignore_eos = false;
    spec.sampling.min_tokens = 50;
    EXPECT_GE(b.run(spec)->samples[0].tokens.size(), 50u);
  }
}

TEST(EngineCore, StopStringsNeverLeakAndLoseNothingElse) {
  Bench b;
  TokenTable table = testing::fake_table();
  std::string whole = b.run(greedy({7, 8}, 120))->text(0, table);
  for (size_t at = 3; at + 4 < whole.size(); at += 7) {
    for (size_t n : {1u, 2u, 4u}) {
      std::string stop = whole.substr(at, n);
      auto spec = greedy({7, 8}, 120);
      spec.sampling.stop = {stop, "zzzzzzzz"};
      auto sink = b.run(spec);
      EXPECT_EQ(sink->text(0, table), whole.substr(0, whole.find(stop)));
      EXPECT_EQ(sink->samples[0].finish, Finish::kStop);
      spec.sampling.include_stop_in_output = true;
      EXPECT_EQ(b.run(spec)->text(0, table), whole.substr(0, whole.find(stop) + n));
    }
  }
}

TEST(EngineCore, AHeldBackPrefixIsSentWhenTheTextEndsOtherwise) {
  Bench b;
  TokenTable table = testing::fake_table();
  std::string whole = b.run(greedy({7, 8}, 50))->text(0, table);
  auto spec = greedy({7, 8}, 50);
  spec.sampling.stop = {whole.substr(whole.size() - 4) + "!"};
  auto sink = b.run(spec);
  EXPECT_EQ(sink->text(0, table), whole);
  EXPECT_EQ(sink->samples[0].finish, Finish::kLength);
}

TEST(EngineCore, StopTokenIdsStopAndAreSentOnlyWhenAsked) {
  Bench b;
  auto all = b.run(greedy({9}, 40))->samples[0].tokens;
  auto spec = greedy({9}, 40);
  spec.sampling.stop_token_ids = {all[17]};
  auto first = std::find(all.begin(), all.end(), all[17]);
  EXPECT_EQ(b.run(spec)->samples[0].tokens, std::vector<int32_t>(all.begin(), first));
  spec.sampling.include_stop_in_output = true;
  EXPECT_EQ(b.run(spec)->samples[0].tokens, std::vector<int32_t>(all.begin(), first + 1));
}

TEST(EngineCore, SamplesDifferRepeatAndTheFirstIsTheSingleOne) {
  Bench b;
  RequestSpec spec{.prompt = std::vector<int32_t>(40, 5),
                   .sampling = {.seed = 99, .n = 4, .max_tokens = 30, .ignore_eos = true}};
  auto once = b.run(spec), twice = b.run(spec);
  std::set<std::vector<int32_t>> texts;
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(once->samples[i].tokens.size(), 30u);
    EXPECT_EQ(once->samples[i].tokens, twice->samples[i].tokens);
    texts.insert(once->samples[i].tokens);
  }
  EXPECT_EQ(texts.size(), 4u);
  EXPECT_EQ(once->usage.completion_tokens, 120u);
  spec.sampling.n = 1;
  EXPECT_EQ(b.run(spec)->samples[0].tokens, once->samples[0].tokens);
}

TEST(EngineCore, SamplesShareThePromptsBlocks) {
  Bench b;
  b.run({.prompt = std::vector<int32_t>(100, 5), .sampling = {.n = 8, .max_tokens = 2, .ignore_eos = true}});
  EXPECT_EQ(b.model.rows_computed, 100u + 8);
}

TEST(EngineCore, CancellingFreesEverythingWithinAStep) {
  Bench b;
  auto sink = std::make_shared<CollectingSink>();
  auto handle = *b.add(greedy(std::vector<int32_t>(100, 4), 100), sink);
  for (int i = 0; i < 10; ++i) b.core->step(i);
  EXPECT_LT(b.core->kv().free_blocks(), b.core->kv().n_blocks());
  handle->cancelled = true;
  b.core->step(11);
  EXPECT_EQ(b.core->kv().free_blocks(), b.core->kv().n_blocks());
  EXPECT_TRUE(sink->ended);
  EXPECT_EQ(sink->samples[0].finish, Finish::kCancelled);
  EXPECT_EQ(sink->error->code, Code::kCancelled);
}

TEST(EngineCore, ADeadlineEndsARequestWaitingOrRunning) {
  EngineOptions options;
  options.limits.max_sequences = 1;
  Bench b(options);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 2; ++i) {
    auto spec = greedy({3}, 200);
    spec.deadline_ms = 50;
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(b.add(spec, sinks.back()));
  }
  auto start = monotonic_us();
  b.core->step(start);
  EXPECT_FALSE(sinks[0]->ended);
  b.core->step(start + 60'000);
  for (auto& sink : sinks) {
    EXPECT_TRUE(sink->ended);
    EXPECT_EQ(sink->samples[0].finish, Finish::kError);
    EXPECT_EQ(sink->error->code, Code::kDeadline);
  }
}

TEST(EngineCore, AFullQueueRefusesAtOnce) {
  EngineOptions options;
  options.limits.max_waiting = 2;
  Bench b(options);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    auto added = b.add(greedy({3}, 5), sinks.back());
    EXPECT_EQ(added.has_value(), i < 2);
    if (!added) {
      EXPECT_EQ(added.error().code, Code::kOverloaded);
    }
  }
  EXPECT_TRUE(testing::run_to_end(*b.core));
}

TEST(EngineCore, AFailedForwardPassEndsOnlyWhatWasInIt) {
  Bench b;
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(b.add(greedy({3}, 50), sink));
  b.core->step(0);
  b.model.fail_next = true;
  b.core->step(1);
  EXPECT_EQ(sink->error->code, Code::kInternal);
  EXPECT_EQ(b.run(greedy({3}, 5))->samples[0].tokens.size(), 5u);
}

TEST(EngineCore, ASlowConsumerPausesOnlyItsOwnRequest) {
  Bench b;
  auto slow = std::make_shared<CollectingSink>(), quick = std::make_shared<CollectingSink>();
  ASSERT_TRUE(b.add(greedy({3}, 100), slow));
  ASSERT_TRUE(b.add(greedy({4}, 100), quick));
  for (int i = 0; i < 5; ++i) b.core->step(i);
  slow->room = false;
  size_t had = slow->samples[0].tokens.size();
  for (int i = 5; i < 300; ++i) b.core->step(i);
  EXPECT_EQ(slow->samples[0].tokens.size(), had);
  EXPECT_TRUE(quick->ended);
  slow->room = true;
  EXPECT_TRUE(testing::run_to_end(*b.core));
  EXPECT_EQ(slow->samples[0].tokens.size(), 100u);
}

TEST(EngineCore, TheEmptyGrammarRunsTheConstrainedPathAndChangesNothing) {
  Bench b;
  auto spec = greedy({5, 6}, 30);
  auto free_text = b.run(spec)->samples[0].tokens;
  spec.grammar = "";
  EXPECT_EQ(b.run(spec)->samples[0].tokens, free_text);
  spec.grammar = "start: \"a\"";
  auto refused = b.add(spec, std::make_shared<CollectingSink>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnsupportedFeature);
}

// A grammar for tests: tokens must rise by one from where they are, up to `last`, then nothing may follow.
class Staircase final : public Constraint {
 public:
  explicit Staircase(int32_t next) : next_(next) {}
  Result<std::unique_ptr<Constraint>> clone() const override { return std::make_unique<Staircase>(next_); }
  Result<void> accept(int32_t token) override {
    if (token != next_) return fail(Code::kInternal, "not the next stair");
    ++next_;
    return {};
  }
  Result<GrammarState> fill_mask(std::span<uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0u);
    if (next_ > 20) return GrammarState::kComplete;
    mask[static_cast<size_t>(next_) / 32] |= 1u << (next_ % 32);
    return GrammarState::kOpen;
  }

 private:
  int32_t next_;
};

class StaircaseCompiler final : public GrammarCompiler {
 public:
  Result<std::unique_ptr<Constraint>> compile(std::string_view grammar) override {
    if (grammar == "bad") return fail(Code::kBadRequest, "the grammar is bad");
    return std::make_unique<Staircase>(5);
  }
};

TEST(EngineCore, AGrammarDecidesTheTextAndEndsIt) {
  StaircaseCompiler compiler;
  EngineOptions options;
  options.grammars = &compiler;
  Bench b(options);
  RequestSpec spec{.prompt = {3}, .sampling = {.n = 3, .max_tokens = 40}, .grammar = "stairs"};
  auto sink = b.run(spec);
  std::vector<int32_t> stairs;
  for (int32_t t = 5; t <= 20; ++t) stairs.push_back(t);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(sink->samples[i].tokens, stairs);
    EXPECT_EQ(sink->samples[i].finish, Finish::kGrammarEnd);
  }
}

TEST(EngineCore, AGrammarThatDoesNotCompileEndsItsRequestWithTheReason) {
  StaircaseCompiler compiler;
  EngineOptions options;
  options.grammars = &compiler;
  Bench b(options);
  auto sink = b.run({.prompt = {3}, .sampling = {.max_tokens = 40}, .grammar = "bad"});
  EXPECT_EQ(sink->error->code, Code::kBadRequest);
  EXPECT_EQ(sink->samples[0].finish, Finish::kError);
}

TEST(EngineCore, LogprobsComeOneForEachToken) {
  Bench b;
  auto spec = greedy({5, 6}, 30);
  spec.sampling.logprobs = true;
  spec.sampling.top_logprobs = 3;
  spec.sampling.stop = {"qqqqqqqq"};
  auto sink = b.run(spec);
  ASSERT_EQ(sink->samples[0].logprobs.size(), 30u);
  for (size_t i = 0; i < 30; ++i) {
    EXPECT_EQ(sink->samples[0].logprobs[i].token, sink->samples[0].tokens[i]);
    EXPECT_EQ(sink->samples[0].logprobs[i].top[0].token, sink->samples[0].tokens[i]);
    EXPECT_EQ(sink->samples[0].logprobs[i].n_top, 3u);
  }
}

// A model that only remembers two tokens soon runs in circles, which is where drafts are right.
TEST(EngineCore, DraftsChangeNothingButTheNumberOfPasses) {
  std::vector<int32_t> texts[2];
  uint64_t passes[2];
  for (uint32_t drafts : {0u, 1u}) {
    for (float temperature : {0.0f, 1.0f}) {
      EngineOptions options;
      options.limits.max_draft_sequences = drafts;
      Bench b(options, {.remembers = 2});
      RequestSpec spec{.prompt = {5, 6, 7},
                       .sampling = {.temperature = temperature, .seed = 4, .max_tokens = 200, .ignore_eos = true}};
      auto sink = b.run(spec);
      texts[drafts].insert(texts[drafts].end(), sink->samples[0].tokens.begin(), sink->samples[0].tokens.end());
      if (temperature == 0.0f) passes[drafts] = b.model.passes;
      if (drafts && temperature == 0.0f) {
        EXPECT_GT(sink->usage.accepted_draft_tokens, 50u);
      }
    }
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_LT(passes[1], passes[0]);
}

// The prompt's last token comes in a step of its own and brings drafts along, which reach into the block behind the
// prompt's; then the samples fork, and their drafts reach there as well. Of two tokens every sequence has occurred.
TEST(EngineCore, DraftsOfSeveralSamplesStayInBlocksOfTheirOwn) {
  for (uint32_t length = 24; length < 36; ++length) {
    SCOPED_TRACE(length);
    std::vector<int32_t> prompt;
    for (uint32_t i = 0; i < length; ++i) prompt.push_back(5 + (0x17 >> i % 8 & 1));
    std::vector<int32_t> texts[2][3];
    for (uint32_t drafts : {0u, 3u}) {
      EngineOptions options;
      options.limits.max_draft_sequences = drafts;
      options.limits.max_rows = length - 1;
      Bench b(options, {.remembers = 2});
      auto sink = b.run(
          {.prompt = prompt,
           .sampling = {
               .logit_bias = {{5, 100.0f}, {6, 100.0f}}, .seed = 4, .n = 3, .max_tokens = 60, .ignore_eos = true}});
      EXPECT_EQ(sink->usage.drafted_tokens > 0, drafts > 0);
      for (size_t i = 0; i < 3; ++i) texts[drafts > 0][i] = sink->samples[i].tokens;
    }
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(texts[0][i], texts[1][i]) << i;
  }
}

// Even and odd tokens in turn, so that a mask for the wrong place shows at once.
class Turns final : public Constraint {
 public:
  explicit Turns(uint32_t odd) : odd_(odd) {}
  Result<std::unique_ptr<Constraint>> clone() const override { return std::make_unique<Turns>(odd_); }
  Result<void> accept(int32_t token) override {
    if (static_cast<uint32_t>(token) % 2 != odd_) return fail(Code::kInternal, "not its turn");
    odd_ ^= 1;
    return {};
  }
  Result<GrammarState> fill_mask(std::span<uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), odd_ ? 0xaaaaaaaau : 0x55555555u);
    return GrammarState::kOpen;
  }

 private:
  uint32_t odd_;
};

class TurnsCompiler final : public GrammarCompiler {
 public:
  Result<std::unique_ptr<Constraint>> compile(std::string_view) override { return std::make_unique<Turns>(0); }
};

TEST(EngineCore, DraftsUnderAGrammarChangeNothingButTheNumberOfPasses) {
  TurnsCompiler compiler;
  for (float temperature : {0.0f, 1.0f}) {
    std::vector<int32_t> texts[2];
    uint64_t passes[2];
    for (uint32_t drafts : {0u, 1u}) {
      EngineOptions options;
      options.limits.max_draft_sequences = drafts;
      options.grammars = &compiler;
      Bench b(options, {.remembers = 2});
      RequestSpec spec{.prompt = {5, 6, 7},
                       .sampling = {.temperature = temperature, .seed = 4, .max_tokens = 200, .ignore_eos = true},
                       .grammar = "turns"};
      auto sink = b.run(spec);
      EXPECT_FALSE(sink->error) << sink->error->message;
      texts[drafts] = sink->samples[0].tokens;
      passes[drafts] = b.model.passes;
      if (!drafts) {
        EXPECT_EQ(sink->usage.drafted_tokens, 0u);
      }
      if (drafts && temperature == 0.0f) {
        EXPECT_GT(sink->usage.accepted_draft_tokens, 50u);
      }
    }
    ASSERT_EQ(texts[0].size(), 200u);
    for (size_t i = 0; i < texts[0].size(); ++i) EXPECT_EQ(texts[0][i] % 2, static_cast<int32_t>(i % 2));
    EXPECT_EQ(texts[0], texts[1]);
    if (temperature == 0.0f) {
      EXPECT_LT(passes[1], passes[0]);
    }
  }
}

TEST(EngineCore, AGrammarThatEndsInsideADraftEndsTheText) {
  StaircaseCompiler compiler;
  EngineOptions options;
  options.grammars = &compiler;
  options.limits.max_draft_sequences = 1;
  Bench b(options);
  std::vector<int32_t> prompt, stairs;
  for (int32_t t = 5; t <= 20; ++t) stairs.push_back(t);
  for (int32_t t = 3; t <= 26; ++t) prompt.push_back(t);
  prompt.insert(prompt.end(), {3, 4});  // the prompt holds the whole text and what would go on behind it
  auto sink = b.run({.prompt = prompt, .sampling = {.max_tokens = 40}, .grammar = "stairs"});
  EXPECT_EQ(sink->samples[0].tokens, stairs);
  EXPECT_EQ(sink->samples[0].finish, Finish::kGrammarEnd);
  EXPECT_GT(sink->usage.accepted_draft_tokens, 5u);
}

}  // namespace
}  // namespace tie::engine
