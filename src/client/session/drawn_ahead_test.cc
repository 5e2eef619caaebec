#include "client/session/drawn_ahead.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "base/random.h"
#include "client/session/limits.h"
#include "crypto/kem.h"

namespace tie::client {
namespace {

struct DrawnAheadTest : testing::Test {
  std::atomic<int64_t> now_ms = 1000;
  DrawnAhead ahead{[this] { return now_ms.load(); }};
  crypto::RequestKey key = new_key(), other = new_key();

  static crypto::RequestKey new_key() {
    Bytes id(32);
    random_bytes(id);
    return {crypto::kSuiteXWing, id, crypto::kem_generate(crypto::KemId::kXWing)->public_key};
  }
  Bytes take(const crypto::RequestKey& to) {
    auto taken = ahead.take(to);
    return taken ? taken->enc() : Bytes();
  }
};

TEST_F(DrawnAheadTest, ASessionThatAsksAgainHasItsNextKeyReady) {
  EXPECT_FALSE(take(key).empty());
  ahead.draw(key);
  EXPECT_FALSE(ahead.has_one_for(key)) << "one request alone draws nothing";
  EXPECT_FALSE(take(key).empty());
  ahead.draw(key);
  EXPECT_TRUE(ahead.has_one_for(key));
}

TEST_F(DrawnAheadTest, NoneServesTwice) {
  std::set<Bytes> seen;
  for (int i = 0; i < 6; ++i) {
    seen.insert(take(key));
    EXPECT_FALSE(ahead.has_one_for(key));
    if (i % 2 == 1) ahead.draw(key);
  }
  EXPECT_EQ(seen.size(), 6u);
}

TEST_F(DrawnAheadTest, OneForAnotherKeyIsNotUsedAndNotKept) {
  take(key), take(key);
  ahead.draw(key);
  EXPECT_FALSE(ahead.has_one_for(other));
  EXPECT_FALSE(take(other).empty());
  EXPECT_FALSE(ahead.has_one_for(key));
  ahead.draw(other);
  EXPECT_TRUE(ahead.has_one_for(other));
}

TEST_F(DrawnAheadTest, AnOldOneIsDrawnAnew) {
  take(key), take(key);
  ahead.draw(key);
  now_ms += kDrawnAheadMs;
  EXPECT_TRUE(ahead.has_one_for(key));
  now_ms += 1;
  EXPECT_FALSE(ahead.has_one_for(key));
  EXPECT_FALSE(take(key).empty());
  ahead.draw(key);
  EXPECT_TRUE(ahead.has_one_for(key));
}

// By the real clock, without anybody asking.
TEST_F(DrawnAheadTest, OneThatNobodyTakesIsWiped) {
  constexpr int64_t kKeepMs = 20;
  DrawnAhead idle(monotonic_ms, kKeepMs);
  ASSERT_TRUE(idle.take(key) && idle.take(key));
  for (int round = 0; round < 3; ++round) {
    idle.draw(key);
    Deadline limit = Deadline::in_ms(30'000);
    while (idle.holds_one() && !limit.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_FALSE(idle.holds_one()) << round;
  }
}

TEST_F(DrawnAheadTest, OneIsNotWipedBeforeItsTime) {
  take(key), take(key);
  ahead.draw(key);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(ahead.has_one_for(key));
}

}  // namespace
}  // namespace tie::client
