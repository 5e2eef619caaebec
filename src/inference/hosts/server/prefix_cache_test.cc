// The prefix pools of a model over several ranks, against an owner of the test's own on a real socket: what one rank's
// pool holds, that they count only together, and that a bad one takes the others with it.
#include "inference/hosts/server/prefix_cache.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <filesystem>
#include <list>
#include <mutex>
#include <numeric>
#include <thread>

#include "cache/prefix/pool_owner.h"
#include "os/framed_message.h"
#include "os/memfd.h"
#include "os/unix_socket.h"
#include "owner.pb.h"

namespace tie::runtime_host {
namespace {

constexpr uint32_t kTokens = 16;

bones::ModelConfig config() {
  bones::ModelConfig c;
  c.n_layers = 5, c.n_embd = 64, c.n_ff = 256, c.n_heads = 6, c.n_kv_heads = 3, c.head_dim = 32, c.n_vocab = 320;
  c.context_length = 512;
  return c;
}

// What forward() leaves in a block: every byte follows from the block's last token and the byte's place.
std::byte content(int32_t token, size_t at) {
  return std::byte((static_cast<size_t>(token) * 31 + at * 7 + at / 251) & 0xff);
}

class PatternModel final : public engine::ForwardModel {
 public:
  const bones::ModelConfig& config() const override { return config_; }
  Result<bones::Logits> forward(const bones::Batch& batch, const bones::KvPool& kv) override {
    ++passes;
    for (const bones::SequenceSpan& span : batch.sequences)
      for (uint32_t i = 0; i < span.n_rows; ++i) {
        std::byte* block = kv.block(span.block_table[(span.first_position + i) / kTokens]);
        for (size_t at = 0; at < kv.layout.block_bytes(); ++at)
          block[at] = content(batch.tokens[span.first_row + i], at);
      }
    return bones::Logits{};
  }
  int passes = 0;

 private:
  bones::ModelConfig config_ = runtime_host::config();
};

std::vector<prefix::PromptEntry> prompts() {
  std::vector<int32_t> tokens(3 * kTokens + 4);
  std::iota(tokens.begin(), tokens.end(), 5);
  return {{"long", tokens, {}}, {"short", std::vector<int32_t>(kTokens, 9), {}}};
}

// Speaks owner.proto. Each rank has a pool of its own behind it, so that a test can make them disagree.
class Owner {
 public:
  explicit Owner(uint32_t ranks) {
    char folder[] = "/tmp/tie-prefix-XXXXXX";
    folder_ = ::mkdtemp(folder);
    listener_ = std::move(os::listen_unix(socket()).value());
    for (uint32_t i = 0; i < ranks; ++i) give(i, prompts());
    accepting_ = std::thread([this] { accept(); });
  }
  ~Owner() {
    stop_.first = os::Fd();
    accepting_.join();
    for (auto& connection : connections_) ::shutdown(connection.first.get(), SHUT_RDWR);
    for (auto& connection : connections_) connection.second.join();
    std::filesystem::remove_all(folder_);
  }
  std::string socket() const { return folder_ + "/owner.sock"; }
  void give(uint32_t rank, std::vector<prefix::PromptEntry> its_prompts) {
    pools_[rank] = std::make_unique<prefix::PoolOwner>(prefix::PoolIdentity{}, std::move(its_prompts), 1);
  }
  prefix::PoolOwner& pool(uint32_t rank) { return *pools_[rank]; }
  os::Mapping& writable(uint32_t rank) { return mapped_[rank]; }
  std::atomic<int> resets{0};

 private:
  void accept() {
    for (;;) {
      pollfd polls[2] = {{listener_.get(), POLLIN, 0}, {stop_.second.get(), POLLIN, 0}};
      if (::poll(polls, 2, 60'000) <= 0 || polls[1].revents != 0) return;
      auto socket = os::accept_unix(listener_.get(), Deadline::in_ms(1000));
      if (!socket) return;
      connections_.emplace_back(std::move(*socket), std::thread());
      connections_.back().second = std::thread([this, fd = connections_.back().first.get()] { serve(fd); });
    }
  }
  void serve(int fd) {
    for (;;) {
      auto received = os::receive_message<v1::OwnerRequest>(fd, size_t{1} << 20, Deadline::in_ms(60'000), 0);
      if (!received) return;
      v1::OwnerReply reply;
      os::Fd passed;
      auto done = answer(received->message, reply, passed);
      if (!done) {
        reply.mutable_error()->set_code(static_cast<v1::ErrorCode>(done.error().code));
        reply.mutable_error()->set_message(done.error().message);
      }
      std::vector<int> fds;
      if (passed) fds.push_back(passed.get());
      if (!os::send_message(fd, reply, Deadline::in_ms(5000), fds)) return;
    }
  }
  Result<void> answer(const v1::OwnerRequest& request, v1::OwnerReply& reply, os::Fd& passed) {
    std::lock_guard lock(mutex_);
    if (request.has_prepare_prefix()) {
      const auto& prepare = request.prepare_prefix();
      for (const prefix::PromptEntry& prompt : pools_.at(prepare.rank())->prompts()) {
        auto& p = *reply.add_prompts();
        p.set_prompt_id(prompt.id);
        p.mutable_token_ids()->Add(prompt.tokens.begin(), prompt.tokens.end());
      }
      if (prepare.block_count() == 0) return {};
      TIE_TRY(crypto::Digest layout, crypto::digest_from(as_bytes(prepare.layout_id()), "layout id"));
      TIE_TRY(passed, pools_.at(prepare.rank())->prepare(0, prepare.block_bytes(), prepare.block_count(), layout));
      TIE_TRY(mapped_[prepare.rank()], os::Mapping::read_write(passed.get()));
    } else if (request.has_seal_prefix()) {
      TIE_TRY(auto metadata, prefix::from_proto(request.seal_prefix().trie()));
      return pools_.at(request.seal_prefix().rank())->seal(0, metadata);
    } else if (request.has_attach_prefix()) {
      TIE_TRY(auto attached, pools_.at(request.attach_prefix().rank())->attach(0));
      prefix::to_proto(attached.metadata, *reply.mutable_trie());
      passed = std::move(attached.fd);
    } else {
      ++resets;
      for (auto& [rank, pool] : pools_) pool->reset();
    }
    return {};
  }

  std::string folder_;
  os::Fd listener_;
  std::pair<os::Fd, os::Fd> stop_ = std::move(os::socket_pair().value());
  std::thread accepting_;
  std::list<std::pair<os::Fd, std::thread>> connections_;
  std::mutex mutex_;
  std::map<uint32_t, std::unique_ptr<prefix::PoolOwner>> pools_;
  std::map<uint32_t, os::Mapping> mapped_;
};

class PrefixOverRanks : public testing::TestWithParam<bones::RankPlace> {
 protected:
  PrefixOverRanks() : owner_(GetParam().count()) {
    context_.owner_socket = owner_.socket();
    context_.model = "m";
    context_.layout = bones::KvLayout::for_model(config(), bones::KvType::kF16, kTokens).value();
    context_.grid = GetParam();
    context_.shards = KvShards::of(config(), GetParam(), context_.layout).value();
  }
  void warm() {
    auto warmed = warm_prefix(context_, model_, 24);
    ASSERT_TRUE(warmed) << warmed.error().message;
  }
  void expect_served() {
    const int passes = model_.passes;
    auto start = start_prefix(context_);
    ASSERT_TRUE(start) << start.error().message;
    ASSERT_EQ(start->state, PrefixState::kRestored);
    EXPECT_EQ(model_.passes, passes);
    std::vector<int32_t> tokens = prompts()[0].tokens;
    const auto blocks = start->source->match(tokens);
    ASSERT_EQ(blocks.size(), 3u);
    std::vector<std::byte> out(context_.layout.block_bytes()), expected(out.size());
    for (size_t i = 0; i < blocks.size(); ++i) {
      ASSERT_TRUE(start->source->read(blocks[i], out));
      for (size_t at = 0; at < out.size(); ++at) expected[at] = content(tokens[(i + 1) * kTokens - 1], at);
      EXPECT_EQ(out, expected) << "block " << i;
    }
    EXPECT_FALSE(start->source->corrupt());
  }
  PrefixState state() {
    auto start = start_prefix(context_);
    EXPECT_TRUE(start) << start.error().message;
    return start ? start->state : PrefixState::kNone;
  }

  Owner owner_;
  PrefixContext context_;
  PatternModel model_;
};

TEST_P(PrefixOverRanks, WarmsAPoolForEachAndRestoresWithoutComputing) {
  EXPECT_EQ(state(), PrefixState::kCold);
  warm();
  expect_served();
  expect_served();
  EXPECT_EQ(owner_.resets, 0);
  size_t parts = 0;
  for (uint32_t rank = 0; rank < GetParam().count(); ++rank) {
    auto attached = owner_.pool(rank).attach(0);
    ASSERT_TRUE(attached);
    EXPECT_EQ(attached->metadata.block_bytes, context_.shards.part_bytes());
    parts += attached->metadata.block_bytes;
  }
  if (GetParam().count() > 1) {
    EXPECT_LT(context_.shards.part_bytes(), context_.layout.block_bytes());
  }
  EXPECT_GE(parts, context_.layout.block_bytes());
}

TEST_P(PrefixOverRanks, AnUnfinishedRankIsNoPool) {
  warm();
  const uint32_t last = GetParam().count() - 1;
  owner_.give(last, prompts());
  EXPECT_EQ(state(), PrefixState::kCold);
  EXPECT_EQ(owner_.resets, 0) << "cold is not wrong";
  warm();
  expect_served();
}

class SeveralRanks : public PrefixOverRanks {};

TEST_P(SeveralRanks, OneThatDisagreesDiscardsAllAndTheyAreWarmedAgain) {
  warm();
  const uint32_t last = GetParam().count() - 1;
  // The last rank's pool comes from a warm-up of its own, with the prompts in another order: sound by itself.
  {
    Owner other(GetParam().count());
    auto swapped = prompts();
    std::swap(swapped[0], swapped[1]);
    for (uint32_t rank = 0; rank < GetParam().count(); ++rank) other.give(rank, swapped);
    PrefixContext elsewhere = context_;
    elsewhere.owner_socket = other.socket();
    ASSERT_TRUE(warm_prefix(elsewhere, model_, 24));
    auto attached = other.pool(last).attach(0);
    ASSERT_TRUE(attached);
    owner_.give(last, swapped);
    auto fd = owner_.pool(last).prepare(0, attached->metadata.block_bytes, attached->metadata.block_count(),
                                        context_.layout_id());
    ASSERT_TRUE(fd);
    {
      auto from = os::Mapping::read_only(attached->fd.get());
      auto to = os::Mapping::read_write(fd->get());
      ASSERT_TRUE(from && to);
      std::ranges::copy(from->bytes(), to->writable().begin());
    }
    ASSERT_TRUE(os::add_seals(fd->get(), os::kSealFutureWrite));
    ASSERT_TRUE(owner_.pool(last).seal(0, attached->metadata));
  }
  EXPECT_EQ(state(), PrefixState::kCold);
  EXPECT_EQ(owner_.resets, 1);
  for (uint32_t rank = 0; rank < GetParam().count(); ++rank) EXPECT_FALSE(owner_.pool(rank).ready());
  owner_.give(last, prompts());
  warm();
  expect_served();
}

TEST_P(PrefixOverRanks, AChangedByteOfAnyRankIsFoundAndNothingOfTheBlockIsGivenOut) {
  warm();
  const uint32_t last = GetParam().count() - 1;
  auto start = start_prefix(context_);
  ASSERT_TRUE(start && start->state == PrefixState::kRestored);
  std::vector<std::byte> out(context_.layout.block_bytes());
  ASSERT_TRUE(start->source->read(1, out));
  owner_.writable(last).writable()[context_.shards.part_bytes() + 3] ^= std::byte{1};
  const auto read = start->source->read(1, out);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::kCorrupt);
  EXPECT_TRUE(start->source->corrupt());
  EXPECT_EQ(out, std::vector<std::byte>(out.size()));
}

TEST_P(PrefixOverRanks, PoolsOfAnotherGridAreRefused) {
  warm();
  PrefixContext other = context_;
  other.grid = {0, 1, 0, GetParam().count() == 2 && GetParam().stages == 2 ? 1u : 2u};
  if (other.grid.alone()) other.grid = {0, 2, 0, 1};
  other.shards = KvShards::of(config(), other.grid, other.layout).value();
  if (other.shards.count() > GetParam().count()) owner_.give(1, prompts());
  auto start = start_prefix(other);
  ASSERT_TRUE(start) << start.error().message;
  EXPECT_EQ(start->state, PrefixState::kCold);
  EXPECT_EQ(owner_.resets, 1);
}

constexpr bones::RankPlace kGrids[] = {{}, {0, 2, 0, 1}, {0, 1, 0, 2}, {0, 2, 0, 2}, {0, 3, 0, 1}};
INSTANTIATE_TEST_SUITE_P(Grids, PrefixOverRanks, testing::ValuesIn(kGrids));
INSTANTIATE_TEST_SUITE_P(Grids, SeveralRanks, testing::ValuesIn(kGrids + 1, std::end(kGrids)));

TEST(KvShards, CopiesOfAHeadAreInEveryRanksPart) {
  bones::ModelConfig c = config();
  c.n_heads = 4, c.n_kv_heads = 1;
  const auto layout = bones::KvLayout::for_model(c, bones::KvType::kF16, kTokens).value();
  const auto shards = KvShards::of(c, {0, 2, 0, 1}, layout);
  ASSERT_TRUE(shards) << shards.error().message;
  EXPECT_EQ(shards->part_bytes(), layout.block_bytes());
}

}  // namespace
}  // namespace tie::runtime_host
