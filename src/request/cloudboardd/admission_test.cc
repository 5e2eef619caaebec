#include "request/cloudboardd/admission.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tie::request::cloudboard {
namespace {

TEST(Admission, LimitZeroIsNotReadyAndTheLimitIsOverloaded) {
  Admission admission;
  EXPECT_EQ(admission.enter().error().code, Code::kNotReady);
  admission.set_limit(1);
  auto slot = admission.enter();
  ASSERT_TRUE(slot.has_value());
  EXPECT_EQ(admission.enter().error().code, Code::kOverloaded);
}

TEST(Admission, ASlotCountsUntilItDiesHoweverOftenItMoves) {
  Admission admission;
  admission.set_limit(1);
  {
    Admission::Slot slot = std::move(*admission.enter());
    Admission::Slot moved = std::move(slot);
    EXPECT_EQ(admission.load().in_flight, 1u);
  }
  EXPECT_EQ(admission.load().in_flight, 0u);
  EXPECT_TRUE(admission.enter().has_value());
}

TEST(Admission, LoweringTheLimitLetsInFlightRequestsFinish) {
  Admission admission;
  admission.set_limit(2);
  auto a = admission.enter(), b = admission.enter();
  admission.set_limit(0);
  EXPECT_EQ(admission.load().in_flight, 2u);
  EXPECT_EQ(admission.enter().error().code, Code::kNotReady);
}

TEST(Admission, NeverLetsInMoreThanTheLimitUnderContention) {
  Admission admission;
  admission.set_limit(3);
  std::atomic<int> inside = 0, most = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        auto slot = admission.enter();
        if (!slot) continue;
        int now = ++inside;
        int seen = most;
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        --inside;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_LE(most, 3);
  EXPECT_EQ(admission.load().in_flight, 0u);
}

}  // namespace
}  // namespace tie::request::cloudboard
