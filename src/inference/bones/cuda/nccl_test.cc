// Ranks that are processes, over the emulated driver and an emulated NCCL (testing/fake_nccl.cc).
#include "inference/bones/cuda/nccl.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
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

NcclRankOptions patient(uint32_t rank, uint32_t ranks) {
  return {.rank = rank, .ranks = ranks, .join_ms = kLongMs, .step_ms = kLongMs};
}

// Each rank in a process of its own; their exit statuses.
std::vector<int> in_processes(uint32_t ranks, const std::function<int(uint32_t rank)>& life) {
  std::vector<pid_t> children;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(life(rank));
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

std::vector<int> in_processes(uint32_t ranks, const std::function<int(uint32_t rank, const Join&)>& life) {
  const NcclUniqueId id = nccl()->unique_id().value();
  return in_processes(ranks, [&](uint32_t rank) {
    return life(rank, [&] { return NcclRanks::join(nccl(), driver(), id, patient(rank, ranks)); });
  });
}

struct Stream {
  Stream() { EXPECT_EQ(driver()->stream_create(&at, 1), 0); }
  ~Stream() { driver()->stream_destroy(at); }
  void* at = nullptr;
};

TEST(NcclRanks, AddUpAlikeOnEveryRank) {
  for (uint32_t ranks : {2u, 4u}) {
    const auto codes = in_processes(ranks, [&](uint32_t rank, const Join& join) {
      auto comm = join();
      if (!comm) return 1;
      Stream stream;
      constexpr size_t kCount = 1000;
      std::vector<float> sum(kCount);
      for (int round = 0; round < 3; ++round) {
        for (size_t i = 0; i < kCount; ++i) sum[i] = static_cast<float>(i * (rank + 1) + round);
        if (!(*comm)->all_reduce(sum.data(), kCount, stream.at) || !(*comm)->wait(stream.at)) return 2;
        const uint32_t n = ranks * (ranks + 1) / 2;
        for (size_t i = 0; i < kCount; ++i)
          if (sum[i] != static_cast<float>(i * n + ranks * round)) return 3;
      }
      return 0;
    });
    EXPECT_EQ(codes, std::vector<int>(ranks, 0));
  }
}

TEST(NcclRanks, HandRowsFromOneToTheNext) {
  const auto codes = in_processes(3, [&](uint32_t rank, const Join& join) {
    auto comm = join();
    if (!comm) return 1;
    Stream stream;
    std::vector<float> rows(1000);
    for (float round = 0; round < 4; ++round) {
      if (rank == 0)
        for (size_t i = 0; i < rows.size(); ++i) rows[i] = round + static_cast<float>(i);
      if (rank != 0 && !(*comm)->receive(rows.data(), rows.size(), rank - 1, stream.at)) return 2;
      for (size_t i = 0; i < rows.size(); ++i)
        if (rows[i] != round + static_cast<float>(i + rank)) return 3;
      for (float& x : rows) x += 1;
      if (rank != 2 && !(*comm)->send(rows.data(), rows.size(), rank + 1, stream.at)) return 4;
      if (!(*comm)->wait(stream.at)) return 5;
    }
    if (rank == 0) ::raise(SIGKILL);
    auto failed = (*comm)->receive(rows.data(), 1, rank - 1, stream.at);
    return !failed && failed.error().code == Code::kRuntimeLost ? 0 : 6;
  });
  EXPECT_EQ(codes, (std::vector<int>{-SIGKILL, 0, 0}));
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
    auto again = (*comm)->all_reduce(&one, 1, stream.at);
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

// ---- a model on a grid of ranks ----

constexpr uint32_t kBest = 40;
using Rows = std::vector<std::vector<Candidate>>;

struct Found {
  Rows best;                  // after each chunk, of this rank's columns
  std::vector<float> logits;  // of a row behind them all, this rank's columns
  Shard shard;
  uint32_t graphs = 0;
};

// The communicators of one rank of a grid.
struct Comms {
  std::shared_ptr<NcclRanks> ranks = {}, stages = {};
};

// The best ids after each chunk's last token, of a model's shard or of all of it; the last chunk under a mask.
Result<Found> run_model(const Bytes& file, RankPlace place, Comms comms, uint32_t chunk) {
  TIE_TRY(LoadedWeights weights, load_weights(driver(), file, place));
  const DeviceTable table = weights.table;
  CudaModelOptions options{
      .max_batch_rows = 64, .max_logit_rows = 4, .max_sequences = 2, .max_top_k = kBest, .max_table_blocks = 64};
  options.ranks = std::move(comms.ranks);
  options.stages = std::move(comms.stages);
  TIE_TRY(CudaModel model, CudaModel::attach(driver(), {}, table, std::move(weights.memory), options));
  DeviceKvPool kv;
  TIE_TRY(kv.layout, KvLayout::for_model(model.part()));
  kv.n_blocks = 4;
  TIE_TRY(const DeviceMemory memory, DeviceMemory::allocate(driver(), kv.n_blocks * kv.layout.block_bytes()));
  kv.base = memory.at();
  std::mt19937 random(5);
  std::vector<int32_t> tokens(chunk == 1 ? 4 : 2 * chunk);  // one as it is, one captured, one replayed, one masked
  for (int32_t& t : tokens) t = static_cast<int32_t>(random() % 300);
  std::vector<uint32_t> mask((table.config.n_vocab + 31) / 32);
  for (uint32_t& word : mask) word = static_cast<uint32_t>(random());
  const std::vector<uint32_t> blocks{3};
  Found out;
  out.shard = model.shard();
  for (uint32_t at = 0; at < tokens.size(); at += chunk) {
    const SequenceSpan span{0, chunk, at, blocks};
    const uint32_t last = chunk - 1;
    const bool masked = at + chunk == tokens.size();
    const BestOf want{.k = kBest, .mask = masked ? mask.data() : nullptr};
    TIE_TRY(const Logits found,
            model.forward({std::span(tokens).subspan(at, chunk), {&span, 1}, {&last, 1}, {}, {&want, 1}}, kv));
    if (found.rows != 0) out.best.emplace_back(found.best.row(0).begin(), found.best.row(0).end());
  }
  const SequenceSpan span{0, 1, static_cast<uint32_t>(tokens.size()), blocks};
  const uint32_t first = 0;
  TIE_TRY(const Logits logits, model.forward({std::span(tokens).first(1), {&span, 1}, {&first, 1}, {}}, kv));
  if (logits.rows != 0) {
    const auto row = logits.row(0);
    out.logits.assign(row.begin(), row.end());
  }
  out.graphs = model.captured_graphs();
  return out;
}

// Of the best ids of one GPU those that are among a rank's columns are the best there, in the order of values that
// differ by rounding alone: an id may change places with a neighbour.
bool agree(const Rows& alone, const Rows& rank, const Shard& shard, double tolerance) {
  if (alone.size() != rank.size()) return false;
  for (size_t row = 0; row < alone.size(); ++row) {
    if (alone[row].size() != kBest || rank[row].size() != kBest) return false;
    const double spread = std::fabs(alone[row].front().logit - alone[row].back().logit) + 1e-3;
    std::vector<Candidate> expected;
    for (const Candidate& one : alone[row])
      if (static_cast<uint32_t>(one.token) - shard.first_vocab < shard.n_vocab) expected.push_back(one);
    for (const Candidate& one : rank[row])
      if (static_cast<uint32_t>(one.token) - shard.first_vocab >= shard.n_vocab) return false;
    for (size_t i = 0; i < expected.size(); ++i)
      if (std::fabs(expected[i].logit - rank[row][i].logit) > tolerance * spread) return false;
    if (spread > 0.1 && expected.size() > 1 && expected[0].logit - expected[1].logit > 2 * tolerance * spread &&
        expected[0].token != rank[row][0].token)
      return false;
  }
  return true;
}

// What a rank found against what one GPU found; a stage before the last finds nothing.
bool agree(const Found& alone, const Found& rank, double tolerance) {
  if (!rank.shard.last_stage) return rank.best.empty() && rank.logits.empty();
  if (!agree(alone.best, rank.best, rank.shard, tolerance) || rank.logits.size() != rank.shard.n_vocab) return false;
  const auto [low, high] = std::minmax_element(alone.logits.begin(), alone.logits.end());
  for (uint32_t i = 0; i < rank.shard.n_vocab; ++i)
    if (std::fabs(rank.logits[i] - alone.logits[rank.shard.first_vocab + i]) > tolerance * (*high - *low)) return false;
  return true;
}

struct Grid {
  uint32_t ranks, stages;
};

// A model on a grid, each rank in a process; 0 for each that agrees with one GPU.
std::vector<int> run_grid(const Bytes& file, Grid grid, uint32_t chunk, double tolerance) {
  const auto alone = run_model(file, {}, {}, chunk);
  EXPECT_TRUE(alone) << alone.error().message;
  std::vector<NcclUniqueId> ids;  // of each stage's ranks, then of each rank's stages
  for (uint32_t i = 0; i < grid.ranks + grid.stages; ++i) ids.push_back(nccl()->unique_id().value());
  const auto codes = in_processes(grid.ranks * grid.stages, [&](uint32_t index) {
    const RankPlace place = RankPlace{0, grid.ranks, 0, grid.stages}.at(index);
    Comms comms;
    auto join = [&](uint32_t id, uint32_t rank, uint32_t of) -> std::shared_ptr<NcclRanks> {
      if (of == 1) return nullptr;
      return NcclRanks::join(nccl(), driver(), ids[id], patient(rank, of)).value();
    };
    comms.ranks = join(place.stage, place.tensor_rank, grid.ranks);
    comms.stages = join(grid.stages + place.tensor_rank, place.stage, grid.stages);
    auto found = run_model(file, place, std::move(comms), chunk);
    if (!found) return std::fprintf(stderr, "%s\n", found.error().message.c_str()), 2;
    if (found->graphs != alone->graphs) return 4;
    return agree(*alone, *found, tolerance) ? 0 : 3;
  });
  for (const NcclUniqueId& id : ids) ::unlink(id.bytes.data());
  EXPECT_EQ(alone->graphs, chunk == 1 ? 1u : 0u) << "graphs with ranks as without";
  return codes;
}

testing::TinyModelOptions tiny(const std::string& architecture) {
  testing::TinyModelOptions o;
  o.architecture = architecture;
  o.weights = o.embedding = TensorType::kF32;
  o.sliding_window = 4;
  return o;
}

class RankedFamilies : public ::testing::TestWithParam<std::string> {};

TEST_P(RankedFamilies, TwoRanksNameTheIdsThatOneNames) {
  const Bytes file = testing::tiny_model(tiny(GetParam()));
  for (auto [chunk, tolerance] : {std::pair{1u, 0.01}, {6u, 0.1}})
    EXPECT_EQ(run_grid(file, {2, 1}, chunk, tolerance), (std::vector<int>{0, 0})) << "chunks of " << chunk;
}

INSTANTIATE_TEST_SUITE_P(All, RankedFamilies, ::testing::Values("llama", "qwen2", "qwen3", "qwen3moe", "gemma2"));

TEST(RankedModel, StagesChangeNoSum) {
  for (const char* architecture : {"qwen3moe", "gemma2"}) {
    const Bytes file = testing::tiny_model(tiny(architecture));
    for (uint32_t chunk : {1u, 6u})
      EXPECT_EQ(run_grid(file, {1, 2}, chunk, 1e-6), (std::vector<int>{0, 0}))
          << architecture << ", chunks of " << chunk;
  }
}

TEST(RankedModel, RanksTimesStages) {
  EXPECT_EQ(run_grid(testing::tiny_model(tiny("gemma2")), {2, 2}, 1, 0.01), (std::vector<int>{0, 0, 0, 0}));
}

TEST(RankedModel, ADeadRankFailsTheForwardPass) {
  testing::TinyModelOptions o = tiny("llama");
  o.n_layers = 1;
  const Bytes file = testing::tiny_model(o);
  const auto codes = in_processes(2, [&](uint32_t rank, const Join& join) {
    auto comm = join();
    if (!comm) return 1;
    if (rank == 1) ::raise(SIGKILL);
    auto found = run_model(file, RankPlace{rank, 2, 0, 1}, {.ranks = std::move(*comm)}, 6);
    return !found && found.error().code == Code::kRuntimeLost ? 0 : 2;
  });
  EXPECT_EQ(codes, (std::vector<int>{0, -SIGKILL}));
}

// In a replay nobody calls NCCL, so nobody is told: wait() asks.
TEST(RankedModel, ADeadRankFailsAGraphsReplay) {
  const auto codes = in_processes(2, [&](uint32_t rank, const Join& join) {
    auto comm = join();
    if (!comm) return 1;
    Stream stream;
    float x = 1;
    void *graph = nullptr, *executable = nullptr;
    if (driver()->capture_begin(stream.at, 1) != 0 || !(*comm)->all_reduce(&x, 1, stream.at) ||
        driver()->capture_end(stream.at, &graph) != 0 || driver()->graph_instantiate(&executable, graph, 0) != 0)
      return 2;
    if (x != 1) return 3;
    if (driver()->graph_launch(executable, stream.at) != 0 || !(*comm)->wait(stream.at) || x != 2) return 4;
    if (rank == 1) ::raise(SIGKILL);
    if (driver()->graph_launch(executable, stream.at) != 0) return 5;
    auto failed = (*comm)->wait(stream.at);
    return !failed && failed.error().code == Code::kRuntimeLost && (*comm)->lost() ? 0 : 6;
  });
  EXPECT_EQ(codes, (std::vector<int>{0, -SIGKILL}));
}

TEST(RankedModel, WeightsOfARankWantItsCommunicators) {
  testing::TinyModelOptions o = tiny("llama");
  o.n_layers = 2;
  const Bytes file = testing::tiny_model(o);
  EXPECT_EQ(run_model(file, RankPlace{1, 2, 0, 1}, {}, 6).error().code, Code::kBadRequest);
  std::shared_ptr<NcclRanks> alone =
      NcclRanks::join(nccl(), driver(), nccl()->unique_id().value(), {.rank = 0, .ranks = 1}).value();
  EXPECT_EQ(run_model(file, RankPlace{0, 2, 0, 1}, {.ranks = alone}, 6).error().code, Code::kBadRequest);
  EXPECT_EQ(run_model(file, RankPlace{0, 1, 0, 2}, {}, 6).error().code, Code::kBadRequest);
  EXPECT_EQ(run_model(file, RankPlace{0, 1, 0, 2}, {.ranks = alone}, 6).error().code, Code::kBadRequest);
}

}  // namespace
}  // namespace tie::bones::cuda
