#include "request/cloudboardd/pair_pool.h"

#include <gtest/gtest.h>

#include <condition_variable>

#include "request/cloudboardd/limits.h"
#include "request/cloudboardd/testing.h"

namespace tie::request::cloudboard {
namespace {

using namespace testing;

struct PairPoolTest : ::testing::Test {
  TempDir dir;
  std::string socket = dir.path + "/helper.sock";
  std::unique_ptr<EventLoop> loop = std::move(*EventLoop::create());
  std::unique_ptr<PairPool> pool;
  std::thread thread;

  void run(size_t prewarmed) {
    pool = std::make_unique<PairPool>(*loop, socket, prewarmed);
    loop->post([this] { pool->start(); });
    loop->every_ms(50, [this] { pool->sweep(); });
    thread = std::thread([this] { loop->run(); });
  }
  ~PairPoolTest() override {
    loop->stop();
    thread.join();
    pool.reset();
  }
  void on_loop(std::function<void()> what) { run_on(*loop, what); }
  size_t warm() {
    size_t count = 0;
    on_loop([&] { count = pool->warm_count(); });
    return count;
  }
  bool becomes_warm(size_t count) {
    for (Deadline deadline = Deadline::in_ms(30'000); !deadline.passed(); ::usleep(2000))
      if (warm() == count) return true;
    return false;
  }
  std::future<Result<std::shared_ptr<Helper>>> take() {
    auto promise = std::make_shared<std::promise<Result<std::shared_ptr<Helper>>>>();
    loop->post([this, promise] { pool->take([promise](auto helper) { promise->set_value(std::move(helper)); }); });
    return promise->get_future();
  }
  void drop(std::shared_ptr<Helper> helper) {
    on_loop([&] { helper.reset(); });
  }
};

void warm_and_wait(os::Fd connection, int) {
  Puppet puppet;
  if (!say_warm(connection.get(), puppet)) return;
  (void)os::receive_frame(connection.get(), 1 << 20, 1, kLong);
}

TEST_F(PairPoolTest, ATakenHelperIsReplacedAndNeverGivenAgain) {
  FakeDaemon daemon(socket, warm_and_wait);
  run(2);
  ASSERT_TRUE(becomes_warm(2));
  std::vector<std::shared_ptr<Helper>> taken;
  for (int i = 0; i < 6; ++i) {
    auto helper = take().get();
    ASSERT_TRUE(helper.has_value());
    for (const auto& other : taken) ASSERT_NE(other, *helper);
    taken.push_back(std::move(*helper));
  }
  ASSERT_TRUE(becomes_warm(2));
  EXPECT_EQ(daemon.connections(), 8);
  for (auto& helper : taken) drop(std::move(helper));
}

TEST_F(PairPoolTest, ATakenHelperIsReplacedOnceItsRequestAnswers) {
  FakeDaemon daemon(socket, warm_and_wait);
  run(2);
  ASSERT_TRUE(becomes_warm(2));
  auto helper = take().get();
  ASSERT_TRUE(helper.has_value());
  EXPECT_EQ(warm(), 1u);
  on_loop([&] { pool->refill(); });
  ASSERT_TRUE(becomes_warm(2));
  drop(std::move(*helper));
}

TEST_F(PairPoolTest, ATakenHelperIsReplacedWithoutAnAnswerToo) {
  FakeDaemon daemon(socket, warm_and_wait);
  run(2);
  ASSERT_TRUE(becomes_warm(2));
  auto helper = take().get();
  ASSERT_TRUE(helper.has_value());
  ASSERT_TRUE(becomes_warm(2));
  drop(std::move(*helper));
}

TEST_F(PairPoolTest, RequestsBeyondThePoolGetHelpersStartedForThem) {
  FakeDaemon daemon(socket, [](os::Fd connection, int number) {
    ::usleep(20'000);
    warm_and_wait(std::move(connection), number);
  });
  run(1);
  std::vector<std::future<Result<std::shared_ptr<Helper>>>> waiting;
  for (int i = 0; i < 20; ++i) waiting.push_back(take());
  for (auto& future : waiting) {
    auto helper = future.get();
    ASSERT_TRUE(helper.has_value()) << helper.error().message;
    drop(std::move(*helper));
  }
}

TEST_F(PairPoolTest, AHelperThatDiesWaitingIsReplaced) {
  FakeDaemon daemon(socket, [](os::Fd connection, int number) {
    if (number == 0) {
      Puppet puppet;
      (void)say_warm(connection.get(), puppet);
      return;  // gone right after
    }
    warm_and_wait(std::move(connection), number);
  });
  run(1);
  ASSERT_TRUE(becomes_warm(1));
  for (Deadline deadline = Deadline::in_ms(30'000); daemon.connections() < 2 && !deadline.passed();) ::usleep(2000);
  EXPECT_EQ(daemon.connections(), 2);
  ASSERT_TRUE(becomes_warm(1));
}

TEST_F(PairPoolTest, ARequestSurvivesTwoFailedStartsAndNotThree) {
  std::atomic<int> failures = 2;
  FakeDaemon daemon(socket, [&](os::Fd connection, int number) {
    if (failures-- > 0) return;
    warm_and_wait(std::move(connection), number);
  });
  run(0);
  auto helper = take().get();
  ASSERT_TRUE(helper.has_value());
  drop(std::move(*helper));
  failures = 1000;
  auto refused = take().get();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kNotReady);
}

TEST_F(PairPoolTest, WithoutAListenerARequestIsRefusedSoonAndThePoolRecovers) {
  run(1);
  int64_t start_ms = monotonic_ms();
  auto refused = take().get();
  ASSERT_FALSE(refused.has_value());
  EXPECT_LT(monotonic_ms() - start_ms, 3000);
  FakeDaemon daemon(socket, warm_and_wait);
  EXPECT_TRUE(becomes_warm(1));
}

TEST_F(PairPoolTest, RestartReplacesEveryWaitingHelper) {
  FakeDaemon daemon(socket, warm_and_wait);
  run(3);
  ASSERT_TRUE(becomes_warm(3));
  on_loop([this] { pool->restart(); });
  ASSERT_TRUE(becomes_warm(3));
  EXPECT_EQ(daemon.connections(), 6);
}

TEST_F(PairPoolTest, WarmWithoutAPidfdIsNotAHelper) {
  FakeDaemon daemon(socket, [](os::Fd connection, int) {
    v1::FromHelper warm;
    warm.mutable_warm();
    (void)os::send_message(connection.get(), warm, kLong);
    (void)os::receive_frame(connection.get(), 1 << 20, 1, kLong);
  });
  run(0);
  EXPECT_FALSE(take().get().has_value());
}

}  // namespace
}  // namespace tie::request::cloudboard
