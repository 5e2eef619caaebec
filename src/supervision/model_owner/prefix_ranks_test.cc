// Two real rank processes and an owner on a real socket: warm-up, restart, disagreement, a rank that dies in the
// middle.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <numeric>
#include <thread>

#include "cache/prefix/owner_link.h"
#include "cache/prefix/pool_owner.h"
#include "cache/prefix/pool_writer.h"
#include "cache/prefix/restored_pool.h"
#include "os/memfd.h"
#include "os/unix_socket.h"
#include "supervision/model_owner/owner_server.h"

namespace tie::owner {
namespace {

constexpr uint32_t kTokens = 4;
constexpr uint64_t kBytes = 4096;

crypto::Digest id(uint8_t fill) {
  crypto::Digest out;
  out.fill(fill);
  return out;
}
Deadline soon() {
  return Deadline::in_ms(5'000);
}

class PrefixRanksTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/tie-ranks-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    std::filesystem::create_directories(folder_ + "/models/m");
    std::vector<int32_t> tokens(20);
    std::iota(tokens.begin(), tokens.end(), 0);
    store_ = std::make_unique<ModelStore>(
        folder_, [tokens](const std::string& name, const std::string&) -> Result<LoadedModel> {
          LoadedModel model;
          model.name = name;
          model.pool = std::make_shared<prefix::PoolOwner>(
              prefix::PoolIdentity{id(1), id(2)},
              std::vector<prefix::PromptEntry>{{"p", tokens, {}}, {"q", {9, 9, 9, 9, 9}, {}}}, 2);
          return model;
        });
    ASSERT_TRUE(store_->scan());
    store_->load();
    listener_ = std::move(os::listen_unix(folder_ + "/owner.sock").value());
    stop_ = std::move(os::socket_pair().value());
  }
  // After every fork(): the server's threads must not exist yet when the ranks are forked.
  void serve_while(const std::vector<std::function<int()>>& ranks, std::vector<int> expected) {
    OwnerServer server(*store_, {});
    ASSERT_TRUE(server.serve_models_in(folder_ + "/weights"));
    std::vector<pid_t> children;
    for (const auto& rank : ranks) {
      pid_t pid = ::fork();
      if (pid == 0) ::_exit(rank());
      children.push_back(pid);
    }
    std::thread thread([&] { EXPECT_TRUE(server.run(listener_.get(), stop_.first.get())); });
    for (size_t i = 0; i < children.size(); ++i) {
      int status = 0;
      ASSERT_EQ(::waitpid(children[i], &status, 0), children[i]);
      int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
      EXPECT_EQ(code, expected[i]) << "rank " << i;
    }
    ASSERT_TRUE(os::write_all(stop_.second.get(), as_bytes("x"), soon()));
    thread.join();
    uint8_t byte;
    ASSERT_TRUE(os::read_exact(stop_.first.get(), {&byte, 1}, soon()));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string socket() const { return folder_ + "/weights/m/" + kModelSocketFile; }

  // What a warming runtime rank does; `swap` lays the prompts out in the other order.
  int warm(uint32_t rank, bool swap = false, bool die_before_seal = false) const {
    auto link = prefix::OwnerLink::connect(socket(), "m", rank, soon());
    if (!link) return 10;
    auto prompts = link->prompts(soon());
    if (!prompts || prompts->size() != 2) return 11;
    if (swap) std::swap((*prompts)[0], (*prompts)[1]);
    auto plan = prefix::plan_blocks(std::move(*prompts), kTokens, kBytes);
    if (!plan) return 12;
    plan->model_id = id(1);
    plan->release_id = id(2);
    plan->layout_id = id(3);
    auto fd = link->prepare(kBytes, plan->block_count(), id(3), soon());
    if (!fd) return 13;
    auto writer = prefix::PoolWriter::create(std::move(*fd), *plan);
    if (!writer) return 14;
    for (uint32_t i = 0; i < plan->block_count(); ++i)
      if (!writer->write_block(i, std::vector<std::byte>(kBytes, std::byte(i + 100 * rank)))) return 15;
    if (die_before_seal) ::raise(SIGKILL);
    auto metadata = writer->finish();
    if (!metadata) return 16;
    return link->seal(*metadata, soon()) ? 0 : 17;
  }

  // What a restarted runtime rank does, exchanging digests with the other over `peer`.
  int restore(uint32_t rank, int peer) const {
    auto link = prefix::OwnerLink::connect(socket(), "m", rank, soon());
    if (!link) return 20;
    auto attached = link->attach(soon());
    if (!attached)
      return attached.error().code == Code::kNotReady ? 21 : attached.error().code == Code::kCorrupt ? 22 : 23;
    auto pool = prefix::RestoredPool::restore(std::move(attached->fd), std::move(attached->metadata),
                                              {id(1), id(2), id(3), kTokens, kBytes});
    if (!pool) return 24;
    crypto::Digest mine = pool->digest(), other{};
    if (!os::write_all(peer, mine, soon()) || !os::read_exact(peer, other, soon())) return 25;
    if (!prefix::require_agreement(std::vector{mine, other})) return 26;
    std::vector<std::byte> block(kBytes);
    for (uint32_t i = 0; i < pool->metadata().block_count(); ++i)
      if (!pool->read_block(i, block) || block[7] != std::byte(i + 100 * rank)) return 27;
    return 0;
  }
  void restore_both(int first, int second) {
    auto peers = std::move(os::socket_pair().value());
    serve_while({[&] { return restore(0, peers.first.get()); }, [&] { return restore(1, peers.second.get()); }},
                {first, second});
  }

  std::string folder_;
  std::unique_ptr<ModelStore> store_;
  os::Fd listener_;
  std::pair<os::Fd, os::Fd> stop_;
};

TEST_F(PrefixRanksTest, BothWarmThenEveryRestartRestoresWithoutComputing) {
  serve_while({[&] { return warm(0); }, [&] { return warm(1); }}, {0, 0});
  for (int recycle = 0; recycle < 2; ++recycle) restore_both(0, 0);
}

TEST_F(PrefixRanksTest, OneWarmRankIsNoWarmPool) {
  serve_while({[&] { return warm(0); }}, {0});
  serve_while({[&] { return restore(0, -1); }}, {21});
}

TEST_F(PrefixRanksTest, ARankThatDiesWhileWarmingLeavesNothingHalf) {
  serve_while({[&] { return warm(0); }, [&] { return warm(1, false, true); }}, {0, -SIGKILL});
  serve_while({[&] { return restore(0, -1); }}, {21});
  serve_while({[&] { return warm(1); }}, {0});
  restore_both(0, 0);
}

TEST_F(PrefixRanksTest, RanksThatDisagreeGetNothingAndWarmAgain) {
  serve_while({[&] { return warm(0); }, [&] { return warm(1, true); }}, {0, 0});
  serve_while({[&] { return restore(0, -1); }}, {22});
  serve_while({[&] { return restore(1, -1); }}, {21});
  serve_while({[&] { return warm(0); }, [&] { return warm(1); }}, {0, 0});
  restore_both(0, 0);
}

}  // namespace
}  // namespace tie::owner
