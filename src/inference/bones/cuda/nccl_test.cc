// Ranks that are processes, over the emulated driver and an emulated NCCL (testing/fake_nccl.cc).
#include "inference/bones/cuda/nccl.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>

#include "inference/bones/cuda/cuda_model.h"
#include "inference/bones/testing/tiny_model.h"

namespace tie::bones::cuda {
namespace {

using model_files::TensorType;

constexpr int64_t kLongMs = 120'000;  // never reached in a test that passes

std::shared_ptr<Driver> driver() {
  static const auto one = Driver::load(0, TIE_FAKE_CUDA).value();
  return one;
}
std::shared_ptr<Nccl> nccl() {
  static const auto one = Nccl::load(TIE_FAKE_NCCL).value();
  return one;
}

using Join = std::function<Result<std::unique_ptr<NcclRanks>>()>;

// Each rank in a process of its own; their exit statuses.
std::vector<int> in_processes(uint32_t ranks, const std::function<int(uint32_t rank, const Join&)>& life) {
  const NcclUniqueId id = nccl()->unique_id().value();
  std::vector<pid_t> children;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      auto join = [&] {
        return NcclRanks::join(nccl(), driver(), id,
                               {.rank = rank, .ranks = ranks, .join_ms = kLongMs, .step_ms = kLongMs});
      };
      ::_exit(life(rank, join));
    }
    children.push_back(child);
  }
  std::vector<int> out;
  for (pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    out.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  }
  return out;
}

struct Stream {
  Stream() { EXPECT_EQ(driver()->stream_create(&at, 1), 0); }
  ~Stream() { driver()->stream_destroy(at); }
  void* at = nullptr;
};

TEST(NcclRanks, AddDivideAndGatherAlikeOnEveryRank) {
  for (uint32_t ranks : {2u, 4u}) {
    const auto codes = in_processes(ranks, [&](uint32_t rank, const Join& join) {
      auto comm = join();
      if (!comm) return 1;
      Stream stream;
      constexpr size_t kCount = 1000;
      std::vector<float> sum(kCount), parts(ranks * kCount), part(kCount);
      std::vector<uint32_t> mine(kCount), all(ranks * kCount);
      for (int round = 0; round < 3; ++round) {
        for (size_t i = 0; i < kCount; ++i) sum[i] = static_cast<float>(i * (rank + 1) + round), mine[i] = 7 * rank + i;
        for (size_t i = 0; i < parts.size(); ++i) parts[i] = static_cast<float>(i + rank);
        if (!(*comm)->all_reduce(sum.data(), kCount, stream.at) ||
            !(*comm)->reduce_scatter(parts.data(), part.data(), kCount, stream.at) ||
            !(*comm)->all_gather(mine.data(), all.data(), kCount, stream.at) || !(*comm)->wait(stream.at))
          return 2;
        const uint32_t n = ranks * (ranks + 1) / 2, m = ranks * (ranks - 1) / 2;
        for (size_t i = 0; i < kCount; ++i) {
          if (sum[i] != static_cast<float>(i * n + ranks * round)) return 3;
          if (part[i] != static_cast<float>((rank * kCount + i) * ranks + m)) return 4;
          for (uint32_t other = 0; other < ranks; ++other)
            if (all[other * kCount + i] != 7 * other + i) return 5;
        }
      }
      return 0;
    });
    EXPECT_EQ(codes, std::vector<int>(ranks, 0));
  }
}

TEST(NcclRanks, ADeadRankFailsTheStepOfTheOthers) {
  const int64_t began = monotonic_ms();
  const auto codes = in_processes(3, [&](uint32_t rank, const Join& join) {
    auto comm = join();
    if (!comm) return 1;
    Stream stream;
    float one = 1;
    if (!(*comm)->all_reduce(&one, 1, stream.at) || one != 3) return 2;
    if (rank == 1) ::raise(SIGKILL);
    auto failed = (*comm)->all_reduce(&one, 1, stream.at);
    if (failed || failed.error().code != Code::kRuntimeLost || !(*comm)->lost()) return 3;
    auto again = (*comm)->all_gather(&one, &one, 1, stream.at);
    return !again && again.error().code == Code::kRuntimeLost && !(*comm)->wait(stream.at) ? 0 : 4;
  });
  EXPECT_EQ(codes, (std::vector<int>{0, -SIGKILL, 0}));
  EXPECT_LT(monotonic_ms() - began, kLongMs / 2) << "not by the deadline";
}

// What NCCL's kernels do when a peer is gone: the stream never gets ready, nobody reports an error.
TEST(NcclRanks, AStreamThatHangsEndsByTheWatchByNcclsOwnErrorOrByTheDeadline) {
  auto stuck = Driver::load(0, TIE_FAKE_CUDA).value();
  stuck->stream_query = [](void*) { return 600; };
  Stream stream;
  auto alone = [&](NcclRankOptions options) {
    auto joined = NcclRanks::join(nccl(), stuck, nccl()->unique_id().value(), std::move(options));
    EXPECT_TRUE(joined) << joined.error().message;
    return std::move(*joined);
  };
  bool died = false;
  auto peer = alone({.step_ms = kLongMs, .peer_lost = [&] { return died; }});
  died = true;
  EXPECT_EQ(peer->wait(stream.at).error().code, Code::kRuntimeLost);
  auto reported = alone({.step_ms = kLongMs});
  ::setenv("TIE_FAKE_NCCL_BROKEN", "6", 1);
  auto broken = reported->wait(stream.at);
  ::unsetenv("TIE_FAKE_NCCL_BROKEN");
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().code, Code::kRuntimeLost);
  EXPECT_NE(broken.error().message.find("remote process"), std::string::npos) << broken.error().message;
  auto late = alone({.step_ms = 50});
  EXPECT_EQ(late->wait(stream.at).error().code, Code::kDeadline);
  float x = 0;
  EXPECT_EQ(late->all_reduce(&x, 1, stream.at).error().code, Code::kRuntimeLost);
}

TEST(NcclRanks, WhoWaitsForARankThatNeverComesGivesUp) {
  const NcclUniqueId id = nccl()->unique_id().value();
  auto joined = NcclRanks::join(nccl(), driver(), id, {.rank = 0, .ranks = 2, .join_ms = 50});
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code, Code::kDeadline);
  EXPECT_EQ(NcclRanks::join(nccl(), driver(), id, {.rank = 2, .ranks = 2}).error().code, Code::kBadRequest);
  ::unlink(id.bytes.data());
}

TEST(Nccl, RefusesOtherVersionsAndLibraries) {
  for (const char* version : {"21304", "30000", "2708"}) {
    ::setenv("TIE_FAKE_NCCL_VERSION", version, 1);
    auto loaded = Nccl::load(TIE_FAKE_NCCL);
    ASSERT_FALSE(loaded) << version;
    EXPECT_EQ(loaded.error().code, Code::kUnsupportedFeature);
    EXPECT_NE(loaded.error().message.find(version), std::string::npos) << loaded.error().message;
  }
  ::unsetenv("TIE_FAKE_NCCL_VERSION");
  EXPECT_EQ(Nccl::load(TIE_FAKE_NCCL).value()->version(), 22203);
  EXPECT_EQ(Nccl::load("libnowhere-nccl.so.2").error().code, Code::kNotFound);
  EXPECT_EQ(Nccl::load(TIE_FAKE_CUDA).error().code, Code::kUnsupportedFeature);
}

// ---- a model on two ranks ----

constexpr uint32_t kBest = 40;
using Rows = std::vector<TopIds>;

// The best ids after each chunk's last token, of a model's shard or of all of it; the last chunk under a mask.
Result<Rows> best_ids(const Bytes& file, RankPlace place, std::shared_ptr<NcclRanks> ranks, uint32_t chunk) {
  TIE_TRY(LoadedWeights weights, load_weights(driver(), file, place));
  const DeviceTable table = weights.table;
  CudaModelOptions options{
      .max_batch_rows = 64, .max_logit_rows = 4, .max_sequences = 2, .max_top_k = kBest, .max_table_blocks = 64};
  options.ranks = std::move(ranks);
  TIE_TRY(CudaModel model, CudaModel::attach(driver(), {}, table, std::move(weights.memory), options));
  TIE_TRY(const Shard shard, shard_of(table.config, place));
  DeviceKvPool kv;
  TIE_TRY(kv.layout, KvLayout::for_model(shard_config(table.config, shard)));
  kv.n_blocks = 4;
  TIE_TRY(const DeviceMemory memory, DeviceMemory::allocate(driver(), kv.n_blocks * kv.layout.block_bytes()));
  kv.base = memory.at();
  std::mt19937 random(5);
  std::vector<int32_t> tokens(chunk == 1 ? 5 : 2 * chunk);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random() % 300);
  std::vector<uint32_t> mask((table.config.n_vocab + 31) / 32);
  for (uint32_t& word : mask) word = static_cast<uint32_t>(random());
  const std::vector<uint32_t> blocks{3};
  Rows out;
  for (uint32_t at = 0; at < tokens.size(); at += chunk) {
    const SequenceSpan span{0, chunk, at, blocks};
    const uint32_t last = chunk - 1;
    const bool masked = at + chunk == tokens.size();
    TIE_TRY(Rows rows, model.forward_top_k({std::span(tokens).subspan(at, chunk), {&span, 1}, {&last, 1}, {}}, kv,
                                           kBest, masked ? mask.data() : nullptr));
    out.push_back(std::move(rows.at(0)));
  }
  if (place.tensor_ranks > 1) {
    const SequenceSpan span{0, 1, 0, blocks};
    if (auto whole = model.forward({std::span(tokens).first(1), {&span, 1}, {}, {}}, kv); whole)
      return fail(Code::kInternal, "a rank gave logits of a part of the vocabulary");
  }
  return out;
}

// The same ids in the order of values that differ by rounding alone: an id may change places with a neighbour.
bool agree(const Rows& alone, const Rows& ranks, double tolerance) {
  if (alone.size() != ranks.size()) return false;
  for (size_t row = 0; row < alone.size(); ++row) {
    if (alone[row].best.size() != kBest || ranks[row].best.size() != kBest) return false;
    const double spread = std::fabs(alone[row].best.front().value - alone[row].best.back().value) + 1e-3;
    for (uint32_t i = 0; i < kBest; ++i)
      if (std::fabs(alone[row].best[i].value - ranks[row].best[i].value) > tolerance * spread) return false;
    if (spread > 0.1 && alone[row].best[0].value - alone[row].best[1].value > 2 * tolerance * spread &&
        alone[row].best[0].id != ranks[row].best[0].id)
      return false;
  }
  return true;
}

class RankedFamilies : public ::testing::TestWithParam<std::string> {};

TEST_P(RankedFamilies, TwoRanksNameTheIdsThatOneNames) {
  testing::TinyModelOptions o;
  o.architecture = GetParam();
  o.weights = o.embedding = TensorType::kF32;
  o.sliding_window = 4;
  const Bytes file = testing::tiny_model(o);
  for (auto [chunk, tolerance] : {std::pair{1u, 0.01}, {6u, 0.1}}) {
    const auto alone = best_ids(file, {}, nullptr, chunk);
    ASSERT_TRUE(alone) << alone.error().message;
    const auto codes = in_processes(2, [&](uint32_t rank, const Join& join) {
      auto comm = join();
      if (!comm) return 1;
      auto found = best_ids(file, RankPlace{rank, 2, 0, 1}, std::move(*comm), chunk);
      if (!found) return std::fprintf(stderr, "%s\n", found.error().message.c_str()), 2;
      return agree(*alone, *found, tolerance) ? 0 : 3;
    });
    EXPECT_EQ(codes, (std::vector<int>{0, 0})) << "chunks of " << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(All, RankedFamilies, ::testing::Values("llama", "qwen2", "qwen3", "qwen3moe", "gemma2"));

TEST(RankedModel, ADeadRankFailsTheForwardPass) {
  testing::TinyModelOptions o;
  o.weights = o.embedding = TensorType::kF32;
  o.n_layers = 1;
  const Bytes file = testing::tiny_model(o);
  const auto codes = in_processes(2, [&](uint32_t rank, const Join& join) {
    auto comm = join();
    if (!comm) return 1;
    if (rank == 1) ::raise(SIGKILL);
    auto found = best_ids(file, RankPlace{rank, 2, 0, 1}, std::move(*comm), 6);
    return !found && found.error().code == Code::kRuntimeLost ? 0 : 2;
  });
  EXPECT_EQ(codes, (std::vector<int>{0, -SIGKILL}));
}

TEST(RankedModel, WeightsOfARankWantItsCommunicator) {
  testing::TinyModelOptions o;
  o.weights = o.embedding = TensorType::kF32;
  o.n_layers = 1;
  const Bytes file = testing::tiny_model(o);
  EXPECT_EQ(best_ids(file, RankPlace{1, 2, 0, 1}, nullptr, 6).error().code, Code::kBadRequest);
  std::shared_ptr<NcclRanks> alone =
      NcclRanks::join(nccl(), driver(), nccl()->unique_id().value(), {.rank = 0, .ranks = 1}).value();
  EXPECT_EQ(best_ids(file, RankPlace{0, 2, 0, 1}, alone, 6).error().code, Code::kBadRequest);
  EXPECT_EQ(best_ids(file, RankPlace{0, 1, 0, 2}, nullptr, 6).error().code, Code::kUnsupportedFeature);
}

}  // namespace
}  // namespace tie::bones::cuda
