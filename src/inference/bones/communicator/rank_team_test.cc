// Real rank processes against one rank: tiny random models of every family, tensor ranks, pipeline stages and both.
#include "inference/bones/communicator/rank_team.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "inference/bones/communicator/testing/forked_ranks.h"
#include "inference/bones/testing/tiny_model.h"

namespace tie::bones {
namespace {

using model_files::TensorType;
using testing::ForkedRanks;
using testing::ForkedRanksOptions;
using testing::TinyModelOptions;

constexpr uint32_t kTokens = 50;

std::vector<int32_t> random_tokens(uint32_t n, uint32_t n_vocab) {
  std::mt19937 random(23);
  std::vector<int32_t> out(n);
  for (int32_t& t : out) t = static_cast<int32_t>(random() % n_vocab);
  return out;
}

// Every family divides by four here; two kv heads, so four tensor ranks replicate them.
TinyModelOptions divisible(const std::string& family, TensorType weights) {
  TinyModelOptions o;
  o.architecture = family;
  o.weights = weights;
  o.embedding = weights == TensorType::kF32 ? TensorType::kF32 : TensorType::kQ8_0;
  o.n_layers = family == "gemma3" ? 7 : 4;
  o.n_heads = 8;
  o.n_ff = 128;
  return o;
}

// Logits of every position of one sequence, evaluated in chunks of `chunk` rows with blocks in reverse order.
Result<std::vector<float>> evaluate(RankLeader& leader, const KvPool& kv, const std::vector<int32_t>& tokens,
                                    uint32_t chunk) {
  std::vector<uint32_t> table(kv.n_blocks);
  for (uint32_t i = 0; i < kv.n_blocks; ++i) table[i] = kv.n_blocks - 1 - i;
  std::vector<float> out;
  for (uint32_t at = 0; at < tokens.size(); at += chunk) {
    const auto n = std::min(chunk, static_cast<uint32_t>(tokens.size()) - at);
    const SequenceSpan span{0, n, at, table};
    std::vector<uint32_t> rows(n);
    std::iota(rows.begin(), rows.end(), 0);
    TIE_TRY(const Logits logits, leader.forward({std::span(tokens).subspan(at, n), {&span, 1}, rows, {}}, kv));
    for (uint32_t i = 0; i < n; ++i) out.insert(out.end(), logits.row(i).begin(), logits.row(i).end());
  }
  return out;
}

Result<std::vector<float>> run_grid(const Bytes& file, RankPlace grid, const std::vector<int32_t>& tokens,
                                    uint32_t chunk, uint32_t threads = 1, KvType kv = KvType::kF16) {
  TIE_TRY(ForkedRanks team, ForkedRanks::start(file, {.grid = grid,
                                                      .threads_per_rank = threads,
                                                      .max_batch_rows = std::max(64u, chunk),
                                                      .max_logit_rows = std::max(64u, chunk),
                                                      .kv_type = kv}));
  return evaluate(team.leader(), team.kv(), tokens, chunk);
}

// One rank is a team of one: the same code without a communicator is what dense_twin_test proves.
Result<std::vector<float>> run_alone(const Bytes& file, const std::vector<int32_t>& tokens, uint32_t chunk,
                                     KvType kv = KvType::kF16) {
  TIE_TRY(const OwnedImage image, OwnedImage::from_gguf(file));
  ThreadPool pool({.n_threads = 1});
  TIE_TRY(Model model, Model::attach(image.bytes(), {.pool = &pool, .max_batch_rows = 64}));
  TIE_TRY(const KvLayout layout, KvLayout::for_model(model.config(), kv));
  const uint32_t blocks = layout.blocks_for(512);
  std::vector<std::byte> memory(blocks * layout.block_bytes() + 64);
  auto* base = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  std::vector<uint32_t> table(blocks);
  std::iota(table.begin(), table.end(), 0);
  std::vector<float> out;
  for (uint32_t at = 0; at < tokens.size(); at += chunk) {
    const auto n = std::min(chunk, static_cast<uint32_t>(tokens.size()) - at);
    const SequenceSpan span{0, n, at, table};
    std::vector<uint32_t> rows(n);
    std::iota(rows.begin(), rows.end(), 0);
    TIE_TRY(const Logits logits,
            model.forward({std::span(tokens).subspan(at, n), {&span, 1}, rows, {}}, {base, blocks, layout}));
    for (uint32_t i = 0; i < n; ++i) out.insert(out.end(), logits.row(i).begin(), logits.row(i).end());
  }
  return out;
}

struct Difference {
  double worst = 0, mean = 0, spread = 0;
};

Difference difference(const std::vector<float>& a, const std::vector<float>& b) {
  Difference d;
  double square = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double delta = std::fabs(a[i] - b[i]);
    d.worst = std::max(d.worst, delta);
    d.mean += delta;
    square += double{a[i]} * a[i];
  }
  d.mean /= static_cast<double>(a.size());
  d.spread = std::sqrt(square / static_cast<double>(a.size()));
  return d;
}

class Grids : public ::testing::TestWithParam<std::string> {};

// With float weights only the order of sums differs, 2^-24 of each addend; what it can move further is the rounding of
// a key or value to f16 (2^-11 of that number), for one number in a few thousand. A lost or doubled addend, a wrong
// head, layer or column is larger than the spread by itself.
TEST_P(Grids, AgreeWithOneRankOnFloatWeights) {
  const TinyModelOptions o = divisible(GetParam(), TensorType::kF32);
  const Bytes file = testing::tiny_model(o);
  const auto tokens = random_tokens(kTokens, o.n_vocab);
  const auto alone = run_alone(file, tokens, kTokens);
  ASSERT_TRUE(alone) << alone.error().message;
  for (RankPlace grid : {RankPlace{0, 2, 0, 1}, {0, 4, 0, 1}, {0, 1, 0, 2}, {0, 2, 0, 2}, {0, 1, 0, 4}}) {
    const auto ranked = run_grid(file, grid, tokens, kTokens);
    ASSERT_TRUE(ranked) << ranked.error().message;
    ASSERT_EQ(ranked->size(), alone->size());
    const Difference d = difference(*alone, *ranked);
    std::printf("%s, %u tensor ranks x %u stages: spread %.3f, worst %.2e, mean %.2e\n", GetParam().c_str(),
                grid.tensor_ranks, grid.stages, d.spread, d.worst, d.mean);
    EXPECT_LT(d.worst, 0.01 * d.spread);
    EXPECT_LT(d.mean, 0.0005 * d.spread);
    if (grid.tensor_ranks == 1) {
      EXPECT_EQ(d.worst, 0.0) << "stages change no sum";
    }
  }
}

// The shards hold whole groups of activations that share a scale, as real models' do. A sum that moves by 2^-24 can
// move an activation's 8-bit code by one, 1/127 of its block's largest; rarely, and never more than quantising itself
// The 8-bit cache divides over ranks by heads like the other: stages change nothing, tensor ranks only what another
// order of sums moves, and one code is a 254th of a head's largest.
TEST_P(Grids, AgreeWithOneRankOverAnEightBitCache) {
  const TinyModelOptions o = divisible(GetParam(), TensorType::kF32);
  const Bytes file = testing::tiny_model(o);
  const auto tokens = random_tokens(kTokens, o.n_vocab);
  const auto alone = run_alone(file, tokens, kTokens, KvType::kQ8);
  ASSERT_TRUE(alone) << alone.error().message;
  for (RankPlace grid : {RankPlace{0, 2, 0, 1}, {0, 1, 0, 2}, {0, 2, 0, 2}}) {
    const auto ranked = run_grid(file, grid, tokens, kTokens, 1, KvType::kQ8);
    ASSERT_TRUE(ranked) << ranked.error().message;
    if (grid.tensor_ranks == 1) {
      EXPECT_EQ(*ranked, *alone);
    }
    EXPECT_LT(difference(*alone, *ranked).worst, 0.1 * difference(*alone, *ranked).spread);
  }
}

// has moved each of them.
TEST_P(Grids, AgreeWithOneRankOnQuantisedWeights) {
  TinyModelOptions o = divisible(GetParam(), TensorType::kQ4_0);
  o.head_dim = 64, o.n_ff = 512;
  const Bytes file = testing::tiny_model(o);
  const auto tokens = random_tokens(kTokens, o.n_vocab);
  const auto alone = run_alone(file, tokens, 7);
  ASSERT_TRUE(alone) << alone.error().message;
  for (RankPlace grid : {RankPlace{0, 2, 0, 1}, {0, 4, 0, 1}, {0, 2, 0, 2}}) {
    const auto ranked = run_grid(file, grid, tokens, 7);
    ASSERT_TRUE(ranked) << ranked.error().message;
    const Difference d = difference(*alone, *ranked);
    std::printf("%s q4, %u x %u: spread %.3f, worst %.2e, mean %.2e\n", GetParam().c_str(), grid.tensor_ranks,
                grid.stages, d.spread, d.worst, d.mean);
    EXPECT_LT(d.worst, 0.2 * d.spread);
    EXPECT_LT(d.mean, 0.02 * d.spread);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Grids,
                         ::testing::Values("llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "qwen3moe"));

// Every rank has all rows of a small batch; of a large one each norms its own (120 rows: in stages' halves and on two
// threads as well), with post norms or without, in codes or in floats.
TEST(RankTeam, GivesTheSameBitsForAnyChunkingAndNumberOfThreads) {
  constexpr uint32_t kMany = 120;
  for (const auto& [family, weights] : {std::pair{"qwen3", TensorType::kQ4_0}, {"gemma3", TensorType::kF32}}) {
    const TinyModelOptions o = divisible(family, weights);
    const Bytes file = testing::tiny_model(o);
    const auto tokens = random_tokens(kMany, o.n_vocab);
    for (const RankPlace grid : {RankPlace{0, 2, 0, 1}, {0, 2, 0, 2}, {0, 4, 0, 1}}) {
      SCOPED_TRACE(fmt::format("{}, {} x {}", family, grid.tensor_ranks, grid.stages));
      const auto small = run_grid(file, grid, tokens, 8);
      ASSERT_TRUE(small) << small.error().message;
      for (uint32_t chunk : {1u, 17u, kTokens, kMany}) EXPECT_EQ(run_grid(file, grid, tokens, chunk).value(), *small);
      for (uint32_t chunk : {17u, kMany}) EXPECT_EQ(run_grid(file, grid, tokens, chunk, 2).value(), *small);
    }
  }
}

class Uneven : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Uneven, ::testing::Values("llama", "qwen3moe"));

TEST_P(Uneven, DividesHeadsColumnsAndVocabulary) {
  TinyModelOptions o = divisible(GetParam(), TensorType::kF32);
  o.n_heads = 6, o.n_kv_heads = 3, o.n_ff = 96, o.n_vocab = 331, o.n_layers = 3;
  const Bytes file = testing::tiny_model(o);
  const auto tokens = random_tokens(kTokens, o.n_vocab);
  const auto alone = run_alone(file, tokens, kTokens);
  ASSERT_TRUE(alone) << alone.error().message;
  for (RankPlace grid : {RankPlace{0, 2, 0, 1}, {0, 2, 0, 2}, {0, 3, 0, 3}}) {
    const auto ranked = run_grid(file, grid, tokens, kTokens);
    ASSERT_TRUE(ranked) << ranked.error().message;
    EXPECT_LT(difference(*alone, *ranked).worst, 0.01 * difference(*alone, *ranked).spread);
  }
}

// One head of keys and values: every rank has a copy, writes the same bytes, and attends with its own queries.
TEST(RankTeam, CopiesKeyValueHeadsWhereThereAreFewerThanRanks) {
  TinyModelOptions o = divisible("gemma3", TensorType::kF32);
  o.n_kv_heads = 1;
  const Bytes file = testing::tiny_model(o);
  const auto tokens = random_tokens(kTokens, o.n_vocab);
  const auto alone = run_alone(file, tokens, kTokens);
  ASSERT_TRUE(alone) << alone.error().message;
  for (RankPlace grid : {RankPlace{0, 2, 0, 1}, {0, 4, 0, 1}, {0, 4, 0, 2}}) {
    const auto ranked = run_grid(file, grid, tokens, 20);
    ASSERT_TRUE(ranked) << ranked.error().message;
    EXPECT_LT(difference(*alone, *ranked).worst, 0.01 * difference(*alone, *ranked).spread);
  }
}

// The ranks of a stage as threads over one mapping, so that ThreadSanitizer sees what they do to each other: sums of
// few rows and of many in turn, one after another without anything else between them.
TEST(SharedMemoryRanks, SumsFollowEachOtherWithoutARace) {
  for (uint32_t ranks : {2u, 3u}) {
    constexpr uint32_t kThreads = 2, kWidth = 36, kRounds = 300;
    RankLimits limits;
    limits.grid = {0, ranks, 0, 1};
    limits.threads_per_rank = kThreads;
    limits.n_embd = kWidth, limits.n_vocab = 16;
    limits.max_batch_rows = 40, limits.max_logit_rows = 1, limits.max_sequences = 1;
    auto segment = RankSegment::create(limits);
    ASSERT_TRUE(segment) << segment.error().message;
    std::vector<std::unique_ptr<SharedMemoryRanks>> all;
    for (uint32_t rank = 0; rank < ranks; ++rank) all.push_back(std::make_unique<SharedMemoryRanks>(*segment, rank));
    std::atomic<uint32_t> wrong{0};
    auto life = [&](uint32_t rank, uint32_t thread) {
      for (uint32_t round = 0; round < kRounds; ++round) {
        const uint32_t rows = round % 3 == 0 ? 1 : round % 3 == 1 ? 7 : 40;
        float* mine = all[rank]->partial(thread);
        const uint32_t columns = kWidth / kThreads;
        for (uint32_t row = 0; row < rows; ++row)
          for (uint32_t i = thread * columns; i < (thread + 1) * columns; ++i)
            mine[row * kWidth + i] = static_cast<float>((rank + 1) * (round + row + i));
        if (!all[rank]->sum(thread, rows, kWidth, Takers::kEveryRank)) return;
        float sum[kWidth];
        for (uint32_t row = rows * thread / kThreads; row < rows * (thread + 1) / kThreads; ++row) {
          std::fill_n(sum, kWidth, 1.0f);
          all[rank]->take_sum(thread, row, sum, row % 2 == 1);
          for (uint32_t i = 0; i < kWidth; ++i)
            wrong += sum[i] != static_cast<float>(ranks * (ranks + 1) / 2 * (round + row + i) + row % 2);
        }
      }
    };
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < ranks; ++rank)
      for (uint32_t thread = 0; thread < kThreads; ++thread) threads.emplace_back(life, rank, thread);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0u);
  }
}

// What a rank writes to its tiles of the shared rows is what the others read after the meeting; stages have their own.
TEST(SharedMemoryRanks, ShareQuantisedRows) {
  RankLimits limits;
  limits.grid = {0, 2, 0, 2};
  limits.n_embd = 64, limits.n_vocab = 16;
  limits.max_batch_rows = 30, limits.max_logit_rows = 1, limits.max_sequences = 1;
  auto segment = RankSegment::create(limits);
  ASSERT_TRUE(segment) << segment.error().message;
  const Activations first = SharedMemoryRanks(*segment, 0).shared_rows(),
                    peer = SharedMemoryRanks(*segment, 1).shared_rows(),
                    next = SharedMemoryRanks(*segment, 2).shared_rows();
  EXPECT_EQ(first.codes, peer.codes);
  EXPECT_EQ(first.f32, peer.f32);
  EXPECT_EQ(first.k, 64u);
  const auto* end = reinterpret_cast<const int8_t*>(first.f32 + (30 + kMostTileRows) * 64);
  EXPECT_GE(next.codes, end);
  EXPECT_GE(reinterpret_cast<const int8_t*>(segment->handed_on(0)), end + (next.codes - first.codes));
}

TEST(RankTeam, RefusesAModelThatDoesNotDivide) {
  const Bytes file = testing::tiny_model({});  // 4 heads of 16 in 2 groups
  EXPECT_EQ(OwnedImage::from_gguf(file, nullptr, {0, 4, 0, 1}).error().code, Code::kUnsupportedFeature);
  EXPECT_EQ(OwnedImage::from_gguf(file, nullptr, {0, 3, 0, 1}).error().code, Code::kUnsupportedFeature);
  EXPECT_EQ(OwnedImage::from_gguf(file, nullptr, {0, 1, 0, 3}).error().code, Code::kUnsupportedFeature);
  EXPECT_EQ(OwnedImage::from_gguf(file, nullptr, {2, 2, 0, 1}).error().code, Code::kBadRequest);
}

TEST(RankTeam, HoldsEachWeightOnceButForVectors) {
  const Bytes file = testing::tiny_model(divisible("llama", TensorType::kQ4_0));
  const size_t whole = OwnedImage::from_gguf(file).value().bytes().size();
  size_t parts = 0;
  for (uint32_t rank = 0; rank < 2; ++rank)
    parts += OwnedImage::from_gguf(file, nullptr, {rank, 2, 0, 1}).value().bytes().size();
  const size_t header_and_vectors = sizeof(ImageHeader) + 60 * sizeof(TensorEntry) + 10 * 64 * 4 + 4096;
  EXPECT_LT(parts, whole + header_and_vectors);
}

TEST(RankTeam, RefusesABatchBeforeAnyRankSeesIt) {
  auto team = ForkedRanks::start(testing::tiny_model(divisible("llama", TensorType::kQ4_0)), {.grid = {0, 2, 0, 1}});
  ASSERT_TRUE(team) << team.error().message;
  const std::vector<int32_t> bad{1, 100'000}, good{1, 2};
  const std::vector<uint32_t> table{0};
  const SequenceSpan span{0, 2, 0, table};
  EXPECT_EQ(team->leader().forward({bad, {&span, 1}, {}, {}}, team->kv()).error().code, Code::kBadRequest);
  KvPool elsewhere = team->kv();
  elsewhere.base += 64;
  EXPECT_EQ(team->leader().forward({good, {&span, 1}, {}, {}}, elsewhere).error().code, Code::kBadRequest);
  EXPECT_TRUE(team->leader().forward({good, {&span, 1}, {}, {}}, team->kv()));
}

TEST(RankTeam, FailsTheStepWhenARankDiesInIt) {
  auto team = ForkedRanks::start(testing::tiny_model(divisible("llama", TensorType::kQ4_0)), {.grid = {0, 2, 0, 2}});
  ASSERT_TRUE(team) << team.error().message;
  const auto tokens = random_tokens(20, 300);
  ASSERT_TRUE(evaluate(team->leader(), team->kv(), tokens, 20));
  const pid_t victim = team->follower(2);
  ::kill(victim, SIGSTOP);  // the step cannot end without it
  int64_t died_us = 0;
  std::thread killer([&] {
    ::usleep(200'000);
    died_us = monotonic_us();
    ::kill(victim, SIGKILL);
  });
  const auto lost = evaluate(team->leader(), team->kv(), tokens, 20);
  const int64_t noticed_us = monotonic_us();
  killer.join();
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().code, Code::kRuntimeLost);
  std::printf("noticed %.1f ms after the death\n", static_cast<double>(noticed_us - died_us) / 1000);
  EXPECT_EQ(evaluate(team->leader(), team->kv(), tokens, 20).error().code, Code::kRuntimeLost);
  for (uint32_t i : {0u, 1u}) EXPECT_EQ(WEXITSTATUS(team->wait_for(i)), 3) << "the peers end with an error";
}

TEST(RankTeam, NoticesADeathWhileIdle) {
  auto team = ForkedRanks::start(testing::tiny_model(divisible("llama", TensorType::kQ4_0)), {.grid = {0, 2, 0, 1}});
  ASSERT_TRUE(team) << team.error().message;
  EXPECT_FALSE(team->leader().lost());
  ::kill(team->follower(0), SIGKILL);
  EXPECT_TRUE(WIFSIGNALED(team->wait_for(0)));
  EXPECT_TRUE(team->leader().lost());
}

TEST(RankTeam, StopsItsFollowersWithoutError) {
  auto team = ForkedRanks::start(testing::tiny_model(divisible("llama", TensorType::kQ4_0)), {.grid = {0, 2, 0, 1}});
  ASSERT_TRUE(team) << team.error().message;
  const pid_t follower = team->follower(0);
  {
    const RankLeader leader = std::move(team->leader());
  }
  EXPECT_EQ(WEXITSTATUS(team->wait_for(0)), 0) << follower;
}

}  // namespace
}  // namespace tie::bones
