// A team of rank processes on emulated GPUs against one emulated GPU.
#include "inference/bones/cuda/gpu_team.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "inference/bones/model/micro_batch.h"
#include "inference/bones/testing/tiny_model.h"
#include "os/memfd.h"
#include "os/process.h"

namespace tie::bones::cuda {
namespace {

using model_files::TensorType;

constexpr uint32_t kBlocks = 6;
const CudaModelOptions kOptions{.max_batch_rows = 32,
                                .max_logit_rows = kBlocks,
                                .max_sequences = kBlocks,
                                .max_top_k = 8,
                                .max_table_blocks = 64,
                                .micro_batch_rows = 2};
[[maybe_unused]] const int devices = ::setenv("TIE_FAKE_CUDA_DEVICES", "4", 1);

Bytes tiny(const std::string& architecture) {
  testing::TinyModelOptions o;
  o.architecture = architecture;
  o.weights = o.embedding = TensorType::kF32;
  o.sliding_window = 4;
  o.n_heads = 8;  // four ranks share two key-value heads
  o.n_ff = 128;
  return testing::tiny_model(o);
}

// The owner's part: every shard on its own GPU.
struct Shards {
  Shards(const Bytes& file, RankPlace grid) {
    for (uint32_t rank = 0; rank < grid.count(); ++rank) {
      auto driver = Driver::load(static_cast<int>(rank), TIE_FAKE_CUDA).value();
      loaded.push_back(load_weights(driver, file, grid.at(rank)).value());
    }
  }
  std::vector<LoadedWeights> loaded;
};

// The same calls on one GPU.
struct Alone {
  explicit Alone(const Bytes& file) : driver(Driver::load(0, TIE_FAKE_CUDA).value()) {
    LoadedWeights loaded = load_weights(driver, file).value();
    const DeviceTable table = loaded.table;
    model =
        std::make_unique<CudaModel>(CudaModel::attach(driver, {}, table, std::move(loaded.memory), kOptions).value());
    kv.emplace(DeviceKv::create(driver, KvLayout::for_model(table.config).value(), kBlocks).value());
  }
  // The parts in which a pipeline of so many stages takes a batch, one after another; all their rows.
  std::vector<std::vector<float>> forward(const Batch& batch, uint32_t stages) {
    MicroBatches cut;
    std::vector<std::vector<float>> out;
    const auto n = static_cast<uint32_t>(batch.tokens.size());
    const uint32_t parts = std::clamp(n / kOptions.micro_batch_rows, 1u, stages);
    for (uint32_t i = 0; i < parts; ++i) append(out, model->forward(cut.part(batch, i, parts).batch, kv->pool()));
    return out;
  }
  static void append(std::vector<std::vector<float>>& out, const Result<Logits>& logits) {
    ASSERT_TRUE(logits) << logits.error().message;
    for (uint32_t i = 0; i < logits->rows; ++i) out.emplace_back(logits->row(i).begin(), logits->row(i).end());
  }
  std::shared_ptr<Driver> driver;
  std::unique_ptr<CudaModel> model;
  std::optional<DeviceKv> kv;
};

// Followers are forked; this process leads.
struct Team {
  Team(const Bytes& file, RankPlace grid) : shards(file, grid) {
    auto nccl = Nccl::load(TIE_FAKE_NCCL).value();
    auto offers = offers_for(*nccl, grid).value();
    const DeviceTable& first = shards.loaded[0].table;
    for (uint32_t rank = 0; rank < grid.count(); ++rank) {
      offers[rank].weights = shards.loaded[rank].memory.share().value();
      offers[rank].weight_bytes = shards.loaded[rank].table.bytes;
    }
    RankSegment segment = RankSegment::create(team_limits(first, kOptions)).value();
    board_fd = os::create_memfd("board", board_bytes(first.config)).value();
    board = os::Mapping::read_write(board_fd.get()).value();
    std::vector<os::Fd> peers;
    const pid_t self = ::getpid();
    for (uint32_t rank = 1; rank < grid.count(); ++rank) {
      const pid_t child = ::fork();
      if (child == 0) ::_exit(follow(segment.fd(), self, rank, offers[rank]));
      followers.push_back(child);
      peers.push_back(os::pidfd_open(child).value());
    }
    segment.watch(PeerWatch(std::move(peers)));
    auto attached = GpuTeamLeader::attach(first, {}, offers[0], options_of(0), std::move(segment), board.writable());
    EXPECT_TRUE(attached) << attached.error().message;
    leader = std::move(attached.value());
  }
  ~Team() {
    leader.reset();
    for (pid_t child : followers) {
      int status = 0;
      ::waitpid(child, &status, 0);
      EXPECT_EQ(status, expected_end);
    }
  }

  std::vector<std::vector<float>> forward(const Batch& batch) {
    std::vector<std::vector<float>> out;
    Alone::append(out, leader->forward(batch));
    return out;
  }
  GpuRankOptions options_of(uint32_t rank) const {
    return {.driver = TIE_FAKE_CUDA, .nccl = TIE_FAKE_NCCL, .gpu = rank, .model = kOptions};
  }
  int follow(int segment_fd, pid_t leads, uint32_t rank, const RankOffer& offer) {
    RankSegment own = RankSegment::open(os::Fd(::dup(segment_fd))).value();
    std::vector<os::Fd> peers;
    peers.push_back(os::pidfd_open(leads).value());
    own.watch(PeerWatch(std::move(peers)));
    auto mine = GpuRank::attach(shards.loaded[rank].table, {}, offer, options_of(rank), own, board.writable());
    auto ended = mine ? follow_on_gpu(**mine, own, board.writable()) : std::unexpected(mine.error());
    if (!ended) std::fprintf(stderr, "rank %u: %s\n", rank, ended.error().message.c_str());
    return ended ? 0 : 1;
  }

  Shards shards;
  os::Fd board_fd;
  os::Mapping board;
  std::vector<pid_t> followers;
  std::unique_ptr<GpuTeamLeader> leader;
  int expected_end = 0;
};

const std::vector<uint32_t> kTable{3, 1};

// Prefill of five tokens, then one at a time; each pass's last row.
template <typename Forward>
std::vector<std::vector<float>> passes(Forward forward) {
  std::mt19937 random(5);
  std::vector<int32_t> tokens(9);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random() % 300);
  std::vector<std::vector<float>> out;
  for (uint32_t at = 0, n = 5; at < tokens.size(); at += n, n = 1) {
    const SequenceSpan span{0, n, at, kTable};
    const uint32_t last = n - 1;
    const auto rows = forward(Batch{std::span(tokens).subspan(at, n), {&span, 1}, {&last, 1}, {}});
    EXPECT_EQ(rows.size(), 1u);
    out.insert(out.end(), rows.begin(), rows.end());
  }
  return out;
}

double worst_of(const std::vector<float>& a, const std::vector<float>& b) {
  const auto [low, high] = std::minmax_element(a.begin(), a.end());
  double worst = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    worst = std::max(worst, std::fabs(double{a[i]} - b[i]) / (*high - *low));
  return worst;
}

class GpuTeams : public ::testing::TestWithParam<std::tuple<const char*, uint32_t, uint32_t>> {};

TEST_P(GpuTeams, ComputeAndMoveBlocksLikeOneGpu) {
  const auto [architecture, ranks, stages] = GetParam();
  const Bytes file = tiny(architecture);
  Alone alone(file);
  const auto expected = passes([&](const Batch& batch) { return alone.forward(batch, stages); });
  Team team(file, RankPlace{0, ranks, 0, stages});
  const KvLayout layout = alone.kv->pool().layout;
  ASSERT_TRUE(team.leader->reserve(layout, kBlocks));
  const auto found = passes([&](const Batch& batch) { return team.forward(batch); });
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_LT(worst_of(expected[i], found[i]), ranks == 1 ? 1e-6 : 0.02) << i;

  // Blocks are whole ones to whoever moves them.
  const auto staging = team.leader->staging();
  ASSERT_EQ(staging.size(), layout.block_bytes());
  ASSERT_TRUE(alone.kv->get(kTable[0]) && team.leader->get(kTable[0]));
  if (ranks == 1) {
    const auto differs = std::mismatch(staging.begin(), staging.end(), alone.kv->staging().begin());
    EXPECT_EQ(differs.first - staging.begin(), std::ssize(staging)) << "the first byte that stages compute otherwise";
  }
  std::vector<std::byte> pattern(staging.size());
  for (size_t i = 0; i < pattern.size(); ++i) pattern[i] = static_cast<std::byte>(i * 7 + i / 256);
  std::copy(pattern.begin(), pattern.end(), staging.begin());
  ASSERT_TRUE(team.leader->put(2) && team.leader->copy(4, 2) && team.leader->zero(2));
  ASSERT_TRUE(team.leader->get(2));
  EXPECT_TRUE(std::all_of(staging.begin(), staging.end(), [](std::byte b) { return b == std::byte{0}; }));
  ASSERT_TRUE(team.leader->get(4));
  EXPECT_TRUE(std::equal(pattern.begin(), pattern.end(), staging.begin()));

  // What a batch does wrong is told and harms nobody.
  const SequenceSpan span{0, 1, 0, kTable};
  const int32_t outside = 1 << 20;
  const uint32_t row = 0;
  EXPECT_EQ(team.leader->forward({{&outside, 1}, {&span, 1}, {&row, 1}, {}}).error().code, Code::kBadRequest);
  EXPECT_EQ(passes([&](const Batch& batch) { return team.forward(batch); }), found) << "the same again";

  // The last pass again, for the best ids alone: those of the whole row, under a mask.
  const SequenceSpan last_span{0, 1, 8, kTable};
  const int32_t last_token = 7;
  const uint32_t first_row = 0;
  const auto again = team.leader->forward({{&last_token, 1}, {&last_span, 1}, {&first_row, 1}, {}});
  ASSERT_TRUE(again);
  std::vector<float> whole_row(again->row(0).begin(), again->row(0).end());
  const std::vector<uint32_t> mask{0x0f0f0f0f, 0xffffffff, 0, 0xf0f00ff0, 0xffffffff, 1, 0xff, 0xffffffff, 0xaaaaaaaa};
  const BestOf want{.k = 5, .below = 280, .mask = mask.data()};
  const auto best = team.leader->forward({{&last_token, 1}, {&last_span, 1}, {&first_row, 1}, {}, {&want, 1}});
  ASSERT_TRUE(best) << best.error().message;
  apply_mask(whole_row, mask);
  TopScratch scratch;
  const auto wanted = select_top(std::span(whole_row).first(want.below), want.k, scratch);
  ASSERT_EQ(best->best.row(0).size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(best->best.row(0)[i].token, wanted[i].token) << i;
    EXPECT_EQ(best->best.row(0)[i].logit, wanted[i].logit) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, GpuTeams,
                         ::testing::Values(std::tuple{"llama", 2u, 1u}, std::tuple{"gemma2", 1u, 2u},
                                           std::tuple{"qwen3", 2u, 2u}, std::tuple{"llama", 4u, 1u}));

// A decode step goes through the stages in parts, too: as it is, captured, replayed. Three rows are multiplied
// otherwise than six, so a batch that was not cut would show.
TEST(GpuTeam, StagesShareADecodeStepInParts) {
  const Bytes file = tiny("llama");
  Alone alone(file);
  Team team(file, RankPlace{0, 1, 0, 2});
  ASSERT_TRUE(team.leader->reserve(alone.kv->pool().layout, kBlocks));
  const std::vector<uint32_t> blocks{0, 1, 2, 3, 4, 5};  // six sequences, one in each
  const std::vector<uint32_t> rows{0, 2, 3, 5};          // four, whose logits are multiplied like two
  for (uint32_t at = 0; at < 4; ++at) {
    std::vector<SequenceSpan> spans;
    std::vector<int32_t> tokens;
    for (uint32_t i = 0; i < kBlocks; ++i) {
      spans.push_back({i, 1, at, std::span(blocks).subspan(i, 1)});
      tokens.push_back(static_cast<int32_t>(20 * at + 3 * i + 1));
    }
    const Batch batch{tokens, spans, rows, {}};
    EXPECT_EQ(team.forward(batch), alone.forward(batch, 2)) << at;
  }
  EXPECT_EQ(team.leader->model().captured_graphs(), 1u);
  EXPECT_EQ(team.leader->model().graph_launches(), 3u);
}

TEST(GpuTeam, ARankThatDiesFailsTheStepAndAllLaterOnes) {
  Team team(tiny("llama"), RankPlace{0, 2, 0, 1});
  ASSERT_TRUE(team.leader->reserve(KvLayout::for_model(team.leader->model().config()).value(), kBlocks));
  const SequenceSpan span{0, 1, 0, kTable};
  const int32_t token = 5;
  const uint32_t row = 0;
  const Batch batch{{&token, 1}, {&span, 1}, {&row, 1}, {}};
  ASSERT_TRUE(team.leader->forward(batch));
  EXPECT_FALSE(team.leader->lost());
  ::kill(team.followers[0], SIGKILL);
  team.expected_end = SIGKILL;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(team.leader->forward(batch).error().code, Code::kRuntimeLost);
  EXPECT_EQ(team.leader->zero(1).error().code, Code::kRuntimeLost);
  EXPECT_TRUE(team.leader->lost());
}

TEST(GpuTeam, ARankThatNeverJoinsEndsTheStart) {
  const Bytes file = tiny("llama");
  const RankPlace grid{0, 2, 0, 1};
  Shards shards(file, grid);
  auto nccl = Nccl::load(TIE_FAKE_NCCL).value();
  auto offer = offers_for(*nccl, grid).value()[0];
  offer.weights = shards.loaded[0].memory.share().value();
  offer.weight_bytes = shards.loaded[0].table.bytes;
  const DeviceTable& table = shards.loaded[0].table;
  std::vector<std::byte> memory(board_bytes(table.config));
  auto attach = [&](const RankOffer& given, const CudaModelOptions& segment_for, std::span<std::byte> board) {
    const GpuRankOptions options{.driver = TIE_FAKE_CUDA, .nccl = TIE_FAKE_NCCL, .join_ms = 50, .model = kOptions};
    return GpuTeamLeader::attach(table, {}, given, options,
                                 RankSegment::create(team_limits(table, segment_for)).value(), board)
        .error()
        .code;
  };
  EXPECT_EQ(attach(offer, kOptions, memory), Code::kDeadline);
  EXPECT_EQ(attach(offer, kOptions, std::span(memory).first(100)), Code::kBadRequest);
  CudaModelOptions other = kOptions;
  other.max_batch_rows = 16;
  EXPECT_EQ(attach(offer, other, memory), Code::kBadRequest);
  ++offer.weight_bytes;
  EXPECT_EQ(attach(offer, kOptions, memory), Code::kCorrupt);
  ::unlink(offer.ranks.bytes.data());
}

}  // namespace
}  // namespace tie::bones::cuda
