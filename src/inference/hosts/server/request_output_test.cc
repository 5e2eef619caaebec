#include "inference/hosts/server/request_output.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "inference/hosts/server/limits.h"

namespace tie::runtime_host {
namespace {

struct Bench {
  int announced = 0;
  std::shared_ptr<RequestOutput> output;
  explicit Bench(uint32_t n = 1) {
    output = std::make_shared<RequestOutput>("id", kAllOutputs, false, n, [this](auto) { ++announced; });
  }
  void token(int32_t id, uint32_t sample = 0, engine::Finish finish = engine::Finish::kNone) {
    output->on_output({.sample = sample, .tokens = std::span(&id, 1), .finish = finish});
  }
};

TEST(RequestOutput, TokensGatherUntilTheyAreTaken) {
  Bench b;
  b.token(1);
  b.token(2);
  EXPECT_EQ(b.announced, 1);
  b.output->seen();
  auto next = b.output->take();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->parts.tokens, (std::vector<int32_t>{1, 2}));
  EXPECT_FALSE(next->parts.final);
  EXPECT_FALSE(b.output->take());
  b.token(3);
  EXPECT_EQ(b.announced, 2);
}

TEST(RequestOutput, ScoresOfThePromptGatherAndPauseTheRequestLikeTokens) {
  Bench b;
  std::vector<engine::TokenLogprobs> scores(kMaxUnsentTokens / 2);
  b.output->on_output({.prompt_logprobs = scores});
  EXPECT_TRUE(b.output->has_room());
  b.output->on_output({.prompt_logprobs = scores});
  EXPECT_FALSE(b.output->has_room());
  auto next = b.output->take();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->parts.prompt_logprobs.size(), kMaxUnsentTokens);
  EXPECT_TRUE(b.output->has_room());
}

TEST(RequestOutput, TheFirstTokenIsDueAtOnceTheNextAfterAnInterval) {
  Bench b;
  b.token(1);
  EXPECT_TRUE(b.output->due(monotonic_us()));
  int64_t before_us = monotonic_us();
  ASSERT_TRUE(b.output->take());
  b.token(2);
  EXPECT_FALSE(b.output->due(before_us));
  EXPECT_TRUE(b.output->due(monotonic_us() + kResponseIntervalUs));
}

TEST(RequestOutput, RequestsOfOneIntervalAreDueTogether) {
  constexpr int64_t kHour = 3'600'000'000;  // no tick passes while this runs, but for one in a billion
  Bench a, b;
  for (Bench* each : {&a, &b}) {
    each->token(1);
    ASSERT_TRUE(each->output->take(kHour));
    each->token(2);
  }
  int64_t tick_us = (monotonic_us() / kHour + 1) * kHour;
  for (Bench* each : {&a, &b}) {
    EXPECT_FALSE(each->output->due(tick_us - 1));
    EXPECT_TRUE(each->output->due(tick_us));
  }
}

TEST(RequestOutput, ManyCallsAreAnsweredLessOftenEach) {
  EXPECT_EQ(response_interval_us(0), kResponseIntervalUs);
  EXPECT_EQ(response_interval_us(kUnhurriedCalls), kResponseIntervalUs);
  EXPECT_EQ(response_interval_us(2 * kUnhurriedCalls), 2 * kResponseIntervalUs);
  EXPECT_EQ(response_interval_us(500), kLongestResponseIntervalUs);
}

TEST(RequestOutput, AnEndOrManyTokensAreDueAtOnce) {
  Bench ending, fast;
  for (Bench* b : {&ending, &fast}) {
    b->token(1);
    ASSERT_TRUE(b->output->take());
    b->token(2);
    ASSERT_FALSE(b->output->due(0));
  }
  ending.token(3, 0, engine::Finish::kStop);
  EXPECT_TRUE(ending.output->due(0));
  for (size_t i = 1; i < kMostGatheredTokens; ++i) fast.token(3);
  EXPECT_TRUE(fast.output->due(0));
  ASSERT_TRUE(fast.output->take());
  EXPECT_FALSE(fast.output->due(0));
}

TEST(RequestOutput, WhatOtherSamplesHaveIsDueUntilAllIsTaken) {
  Bench b(2);
  b.token(1, 0);
  b.token(2, 1);
  ASSERT_TRUE(b.output->take());
  EXPECT_TRUE(b.output->due(monotonic_us()));
  ASSERT_TRUE(b.output->take());
  EXPECT_FALSE(b.output->due(0));
}

TEST(RequestOutput, TheLastFinishAndTheEndAreOneResponse) {
  Bench b;
  b.token(1, 0, engine::Finish::kLength);
  EXPECT_FALSE(b.output->take());  // the end is about to follow
  b.output->on_end({.completion_tokens = 1}, nullptr);
  auto next = b.output->take();
  ASSERT_TRUE(next);
  EXPECT_TRUE(next->parts.final);
  EXPECT_EQ(next->parts.finish, engine::Finish::kLength);
  EXPECT_EQ(next->parts.usage.completion_tokens, 1u);
  EXPECT_FALSE(b.output->take());
}

TEST(RequestOutput, EachSampleHasItsOwnResponses) {
  Bench b(2);
  b.token(1, 0);
  b.token(2, 1, engine::Finish::kStop);
  b.token(3, 0, engine::Finish::kStop);
  b.output->on_end({}, nullptr);
  auto first = b.output->take(), second = b.output->take();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->parts.tokens, (std::vector<int32_t>{1, 3}));
  EXPECT_FALSE(first->parts.final);
  EXPECT_EQ(second->parts.sample, 1u);
  EXPECT_TRUE(second->parts.final);
}

TEST(RequestOutput, AnErrorComesLastAfterTheTokensBeforeIt) {
  Bench b;
  b.token(1);
  b.output->on_output({.finish = engine::Finish::kError});
  Error why{Code::kDeadline, "late"};
  b.output->on_end({}, &why);
  auto next = b.output->take();
  ASSERT_TRUE(next && next->error);
  EXPECT_TRUE(next->parts.final);
  EXPECT_EQ(next->parts.tokens, std::vector<int32_t>{1});
  EXPECT_EQ(next->parts.finish, engine::Finish::kError);
}

TEST(RequestOutput, AClientThatDoesNotReadIsWaitedFor) {
  Bench b;
  for (size_t i = 0; i < kMaxUnsentTokens; ++i) {
    EXPECT_TRUE(b.output->has_room());
    b.token(1);
  }
  EXPECT_FALSE(b.output->has_room());
  b.output->take();
  EXPECT_TRUE(b.output->has_room());
}

}  // namespace
}  // namespace tie::runtime_host
