#include "inference/engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "inference/engine/counter_random.h"
#include "inference/engine/logit_math.h"

namespace tie::engine {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TokenTable table_of(uint32_t n) {
  TokenTable table;
  for (uint32_t i = 0; i < n; ++i) table.add("t");
  (void)table.add_end_id(0);
  return table;
}

std::vector<float> random_row(size_t n, uint32_t seed, float spread = 4.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> row(n);
  for (auto& x : row) x = normal(rng);
  return row;
}

int32_t draw_once(SamplingOptions options, std::vector<float> row, uint64_t seed, uint64_t position = 0,
                  uint32_t sample = 0, TokenLogprobs* logprobs = nullptr, std::span<const uint32_t> mask = {}) {
  TokenTable table = table_of(static_cast<uint32_t>(row.size()));
  SamplerWorkspace workspace(static_cast<uint32_t>(row.size()));
  Sampler sampler(options, table, seed, sample, {}, 8);
  return sampler.draw({.row = row, .mask = mask, .position = position}, workspace, logprobs);
}

// The definition, by sorting everything.
std::set<int32_t> survivors(const SamplingOptions& o, const std::vector<float>& row) {
  std::vector<std::pair<double, int32_t>> p;
  double max = *std::max_element(row.begin(), row.end());
  for (size_t i = 0; i < row.size(); ++i)
    p.push_back({std::exp((row[i] - max) / o.temperature), static_cast<int32_t>(i)});
  std::sort(p.begin(), p.end(),
            [](auto& a, auto& b) { return a.first > b.first || (a.first == b.first && a.second < b.second); });
  if (o.top_k > 0 && o.top_k < p.size()) p.resize(o.top_k);
  double total = 0, sum = 0;
  for (auto& [mass, id] : p) total += mass;
  std::set<int32_t> kept;
  for (auto& [mass, id] : p) {
    if (!kept.empty() && (mass < o.min_p || (o.top_p < 1 && sum >= o.top_p * total))) break;
    kept.insert(id);
    sum += mass;
  }
  return kept;
}

TEST(LogitMath, MaximumAndItsFirstPlaceForEveryLength) {
  for (size_t n = 1; n < 120; ++n) {
    auto row = random_row(n, static_cast<uint32_t>(n));
    auto best = std::max_element(row.begin(), row.end());
    EXPECT_EQ(max_of(row), *best);
    EXPECT_EQ(argmax_of(row), best - row.begin());
    row.back() = *best;  // a tie goes to the lower id
    EXPECT_EQ(argmax_of(row), std::max_element(row.begin(), row.end()) - row.begin());
  }
}

TEST(LogitMath, NanIsNeverTheMaximum) {
  std::vector<float> row(40, kNan);
  EXPECT_EQ(argmax_of(row), -1);
  row[37] = -5.0f;
  EXPECT_EQ(argmax_of(row), 37);
  EXPECT_EQ(argmax_of(std::vector<float>(33, -kInf)), -1);
}

TEST(LogitMath, ExponentialsAgreeWithTheLibraryToAFewUlps) {
  for (size_t n : {1u, 15u, 16u, 17u, 1000u, 1024u, 1025u, 5000u}) {
    auto row = random_row(n, 7, 10.0f);
    std::vector<float> out(n + 16);
    std::vector<double> sums(n / kSumBlock + 1);
    float max = max_of(row);
    double total = exponentials(row, max, 0.7f, out.data(), sums.data()), expected = 0;
    for (size_t i = 0; i < n; ++i) {
      double e = std::exp(static_cast<double>((row[i] - max) * 0.7f));
      expected += e;
      EXPECT_NEAR(out[i], e, 1e-6 * e + 1e-37) << i;
    }
    EXPECT_NEAR(total, expected, 1e-5 * expected);
  }
}

TEST(LogitMath, MaskRemovesExactlyTheZeroBits) {
  auto row = random_row(100, 3);
  auto before = row;
  std::vector<uint32_t> mask = {0xFFFFFFFF, 0x0, 0xA5A5A5A5, 0x9};
  apply_mask(row, mask);
  for (size_t i = 0; i < row.size(); ++i) EXPECT_EQ(row[i], (mask[i / 32] >> (i % 32) & 1) ? before[i] : -kInf) << i;
}

TEST(CounterRandom, DependsOnSeedSampleAndPositionOnly) {
  EXPECT_EQ(counter_random(7, 1, 2), counter_random(7, 1, 2));
  std::set<uint64_t> seen;
  for (uint64_t seed : {0ull, 1ull, 1ull << 40})
    for (uint32_t sample = 0; sample < 16; ++sample)
      for (uint64_t position = 0; position < 64; ++position) seen.insert(counter_random(seed, sample, position));
  EXPECT_EQ(seen.size(), 3u * 16 * 64);
}

// Known answer of Philox4x32-10 for counter 0, key 0 (Random123's published vectors): 6627e8d5 e169c58d bc57ac4c
// 9b00dbd8.
TEST(CounterRandom, IsPhilox) {
  EXPECT_EQ(counter_random(0, 0, 0), 0xe169c58d6627e8d5u);
}

TEST(SelectTop, IsTheHeadOfTheSortedRow) {
  for (size_t n : {1u, 5u, 100u, 3000u})
    for (size_t k : {1u, 2u, 40u, 256u, 5000u}) {
      auto row = random_row(n, static_cast<uint32_t>(n + k));
      for (size_t i = 0; i < n; i += 3) row[i] = std::round(row[i]);  // many ties
      SamplerWorkspace workspace(static_cast<uint32_t>(n));
      auto top = select_top(row, k, workspace.top);
      std::vector<int32_t> ids(n);
      for (size_t i = 0; i < n; ++i) ids[i] = static_cast<int32_t>(i);
      std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return row[a] > row[b]; });
      ASSERT_EQ(top.size(), std::min(n, k));
      for (size_t i = 0; i < top.size(); ++i) ASSERT_EQ(top[i].token, ids[i]) << n << " " << k << " " << i;
    }
}

TEST(Sampler, ATemperatureNearZeroIsGreedyAndFinite) {
  auto row = random_row(5000, 1);
  int32_t best = argmax_of(row);
  for (float t : {0.0f, 1e-6f, 1e-8f}) EXPECT_EQ(draw_once({.temperature = t}, row, 5), best);
  for (uint64_t seed = 0; seed < 20; ++seed) EXPECT_EQ(draw_once({.temperature = 2e-5f}, row, seed), best);
}

TEST(Sampler, DrawsOnlyWhatTruncationKeepsAndAllOfIt) {
  struct Case {
    SamplingOptions options;
    float spread;
  };
  std::vector<Case> cases = {{{.temperature = 1, .top_k = 5}, 1},
                             {{.temperature = 1.5f, .top_p = 0.9f}, 2},
                             {{.temperature = 1, .min_p = 0.2f}, 1},
                             {{.temperature = 0.7f, .top_k = 20, .top_p = 0.8f}, 1},
                             {{.temperature = 1, .top_p = 0.5f, .min_p = 0.3f}, 1},
                             {{.temperature = 1, .top_p = 1e-6f}, 1}};
  for (auto& [options, spread] : cases) {
    auto row = random_row(300, 11, spread);
    auto allowed = survivors(options, row);
    std::set<int32_t> seen;
    for (uint64_t seed = 0; seed < 4000; ++seed) seen.insert(draw_once(options, row, seed));
    for (int32_t id : seen) EXPECT_TRUE(allowed.contains(id)) << id;
    if (allowed.size() <= 12) {
      EXPECT_EQ(seen, allowed);
    }
  }
}

// A nearly flat row: top-p keeps thousands of tokens, which takes the path without a full sort.
TEST(Sampler, FlatDistributionsKeepTheSameTokensAsASort) {
  SamplingOptions options{.temperature = 2.0f, .top_p = 0.6f};
  auto row = random_row(6000, 13, 0.3f);
  auto allowed = survivors(options, row);
  ASSERT_GT(allowed.size(), 1100u);
  std::map<int32_t, int> seen;
  for (uint64_t seed = 0; seed < 3000; ++seed) ++seen[draw_once(options, row, seed)];
  for (auto& [id, count] : seen) EXPECT_TRUE(allowed.contains(id)) << id;
  EXPECT_GT(seen.size(), 1000u);
}

TEST(Sampler, FrequenciesFollowTheDistribution) {
  std::vector<float> row = {0, std::log(2.0f), std::log(3.0f), std::log(4.0f), -kInf};
  std::vector<int> count(5);
  for (uint64_t seed = 0; seed < 20000; ++seed) ++count[static_cast<size_t>(draw_once({}, row, seed))];
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(count[static_cast<size_t>(i)], 20000 * (i + 1) / 10.0, 350) << i;  // five standard deviations
  EXPECT_EQ(count[4], 0);
}

TEST(Sampler, PaddingIdsAndMaskedIdsAreNeverDrawn) {
  TokenTable table = table_of(50);
  std::vector<uint32_t> mask = {0xFFFFFFF0, 0x3FFFF};
  for (uint64_t seed = 0; seed < 200; ++seed) {
    auto row = random_row(64, static_cast<uint32_t>(seed));
    for (size_t i = 50; i < 64; ++i) row[i] = 1000;
    SamplerWorkspace workspace(64);
    SamplingOptions options{.temperature = seed % 2 ? 1.0f : 0.0f};
    Sampler sampler(options, table, seed, 0, {}, 4);
    int32_t token = sampler.draw({.row = row, .mask = mask}, workspace, nullptr);
    EXPECT_TRUE(token >= 4 && token < 50) << token;
  }
}

TEST(Sampler, NothingAllowedIsMinusOne) {
  std::vector<uint32_t> none = {0};
  EXPECT_EQ(draw_once({}, random_row(20, 1), 1, 0, 0, nullptr, none), -1);
  EXPECT_EQ(draw_once({.temperature = 0}, std::vector<float>(20, kNan), 1), -1);
  EXPECT_EQ(draw_once({}, std::vector<float>(20, -kInf), 1), -1);
}

TEST(Sampler, InfiniteLogitsGiveFiniteLogprobs) {
  std::vector<float> row(40, -kInf);
  row[7] = 1;
  TokenLogprobs logprobs;
  EXPECT_EQ(draw_once({.logprobs = true, .top_logprobs = 20}, row, 1, 0, 0, &logprobs), 7);
  EXPECT_EQ(logprobs.n_top, 1u);
  EXPECT_FLOAT_EQ(logprobs.logprob, 0);
  row[9] = kInf;
  draw_once({.logprobs = true, .top_logprobs = 5}, row, 1, 0, 0, &logprobs);
  EXPECT_TRUE(std::isfinite(logprobs.logprob));
  for (uint32_t i = 0; i < logprobs.n_top; ++i) EXPECT_TRUE(std::isfinite(logprobs.top[i].logprob));
}

TEST(Sampler, LogprobsDescribeTheRawDistribution) {
  auto row = random_row(500, 21, 2.0f);
  double sum = 0;
  for (float x : row) sum += std::exp(static_cast<double>(x));
  TokenLogprobs logprobs;
  SamplingOptions options{.temperature = 0.5f, .top_k = 3, .logprobs = true, .top_logprobs = 4};
  options.logit_bias = {{argmax_of(row), -100.0f}};
  int32_t token = draw_once(options, row, 3, 0, 0, &logprobs);
  EXPECT_NEAR(logprobs.logprob, row[static_cast<size_t>(token)] - std::log(sum), 1e-4);
  EXPECT_EQ(logprobs.top[0].token, argmax_of(row));
  EXPECT_NEAR(logprobs.top[0].logprob, max_of(row) - std::log(sum), 1e-4);
  EXPECT_NE(token, argmax_of(row));
}

TEST(Sampler, PenaltiesCountOutputAndRepetitionCountsThePromptToo) {
  TokenTable table = table_of(6);
  SamplerWorkspace workspace(6);
  auto best_after = [&](SamplingOptions options, std::vector<int32_t> prompt, std::vector<int32_t> output,
                        std::vector<float> row) {
    options.temperature = 0;
    Sampler sampler(options, table, 1, 0, prompt, 8);
    for (int32_t token : output) sampler.accept(token);
    return sampler.draw({.row = row}, workspace, nullptr);
  };
  std::vector<float> row = {0, 0, 2.0f, 1.9f, 1.0f, -1.0f};
  EXPECT_EQ(best_after({.presence_penalty = 0.5f}, {2}, {}, row), 2);  // the prompt does not count
  EXPECT_EQ(best_after({.presence_penalty = 0.5f}, {}, {2}, row), 3);
  EXPECT_EQ(best_after({.frequency_penalty = 0.2f}, {}, {2, 2, 3}, row), 3);  // 1.6 against 1.7
  EXPECT_EQ(best_after({.frequency_penalty = 0.2f}, {}, {2, 3, 3}, row), 2);
  EXPECT_EQ(best_after({.repetition_penalty = 1.5f}, {2, 3}, {}, row), 2);  // 1.33 against 1.27
  EXPECT_EQ(best_after({.repetition_penalty = 3.0f}, {2}, {3}, row), 4);
  EXPECT_EQ(best_after({.repetition_penalty = 2.0f}, {5}, {}, {-1.5f, -1.6f, -1.7f, -1.8f, -1.9f, -1.0f}),
            0);  // negative logits move down
}

TEST(Sampler, LogitBiasForcesAndBans) {
  auto row = random_row(100, 5);
  EXPECT_EQ(draw_once({.temperature = 0, .logit_bias = {{42, 100.0f}}}, row, 1), 42);
  EXPECT_NE(draw_once({.temperature = 0, .logit_bias = {{argmax_of(row), -100.0f}}}, row, 1), argmax_of(row));
}

TEST(Sampler, SamplesOfOneSeedDifferAndRepeat) {
  auto row = random_row(2000, 9, 1.0f);
  std::set<int32_t> first;
  for (uint32_t sample = 0; sample < 8; ++sample) first.insert(draw_once({}, row, 77, 3, sample));
  EXPECT_GT(first.size(), 4u);
  for (uint32_t sample = 0; sample < 8; ++sample)
    EXPECT_EQ(draw_once({}, row, 77, 3, sample), draw_once({}, row, 77, 3, sample));
}

TEST(SamplingOptions, AbsurdValuesAreRefusedByName) {
  auto refused = [](SamplingOptions o, const char* name) {
    auto r = check(o, 1000);
    return !r && r.error().code == Code::kBadRequest && r.error().message.find(name) != std::string::npos;
  };
  EXPECT_TRUE(check({}, 1000));
  EXPECT_TRUE(refused({.temperature = kNan}, "temperature"));
  EXPECT_TRUE(refused({.temperature = -1}, "temperature"));
  EXPECT_TRUE(refused({.top_p = 0}, "top_p"));
  EXPECT_TRUE(refused({.min_p = 2}, "min_p"));
  EXPECT_TRUE(refused({.repetition_penalty = 0}, "repetition_penalty"));
  EXPECT_TRUE(refused({.presence_penalty = 3}, "presence_penalty"));
  EXPECT_TRUE(refused({.frequency_penalty = kInf}, "frequency_penalty"));
  EXPECT_TRUE(refused({.logit_bias = {{1000, 1.0f}}}, "logit_bias"));
  EXPECT_TRUE(refused({.logit_bias = {{-1, 1.0f}}}, "logit_bias"));
  EXPECT_TRUE(refused({.logit_bias = {{1, 101.0f}}}, "logit_bias"));
  EXPECT_TRUE(refused({.n = 5'000'000}, "n must"));
  EXPECT_TRUE(refused({.stop = {""}}, "stop"));
  EXPECT_TRUE(refused({.stop = std::vector<std::string>(2000, "x")}, "stop"));
  EXPECT_TRUE(refused({.stop_token_ids = {1000}}, "stop_token_ids"));
  EXPECT_TRUE(refused({.top_logprobs = 1'000'000'000}, "top_logprobs"));
}

}  // namespace
}  // namespace tie::engine
