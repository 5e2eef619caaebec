// Every rule of the state machine as a sentence.
#include <functional>
#include <set>

#include "supervision/controllerd/testing/core_driver.h"

namespace tie::controller {
namespace {

using testing::Driver;
using testing::of_kind;
using testing::options;

TEST(Core, BecomesReadyOnlyWhenEveryConditionHolds) {
  const std::vector<std::function<void(Driver&)>> conditions = {
      [](Driver& d) { d.send(GpuReport{Gpu::kHealthy, ""}); },
      [](Driver& d) { d.send(OwnerReport{Owner::kReady, "", "o1"}); },
      [](Driver& d) { d.runtime(Runtime::kReady); },
      [](Driver& d) { d.send(Registration{true}); },
  };
  for (size_t missing = 0; missing < conditions.size(); ++missing) {
    Driver d;
    for (size_t i = 0; i < conditions.size(); ++i)
      if (i != missing) conditions[i](d);
    EXPECT_EQ(d.core.phase(), Phase::kInitializing) << missing;
    EXPECT_EQ(d.prewarm.op, 0u) << missing;
    conditions[missing](d);
    EXPECT_NE(d.prewarm.op, 0u) << missing;
    EXPECT_EQ(d.core.phase(), Phase::kInitializing) << "the pairs are not warm yet";
    d.prewarmed();
    EXPECT_EQ(d.core.phase(), Phase::kReady) << missing;
    EXPECT_EQ(d.advertise.state, Phase::kReady);
    EXPECT_EQ(d.advertise.max_requests, 32u);
  }
}

TEST(Core, EveryUnhealthyFactTakesTheNodeOutOfService) {
  const std::vector<Event> faults = {
      GpuReport{Gpu::kDegraded, "hot"},
      GpuReport{Gpu::kUnavailable, "lost"},
      OwnerReport{Owner::kError, "m", "o1"},
      RuntimeReport{0, Runtime::kError, "a", "x"},
      RuntimeReport{0, Runtime::kUnreachable, "", "x"},
  };
  for (const Event& fault : faults) {
    Driver d;
    d.make_ready();
    d.send(fault);
    EXPECT_EQ(d.core.phase(), Phase::kError);
    EXPECT_EQ(d.advertise.state, Phase::kError);
    EXPECT_EQ(d.advertise.max_requests, 0u);
    EXPECT_FALSE(d.core.reason().empty());
  }
}

TEST(Core, AModelOnAGpuWantsAVerdictAboutGpus) {
  Driver d;
  d.make_ready();
  d.send(GpuReport{Gpu::kHealthy, "", false});
  EXPECT_EQ(d.core.phase(), Phase::kReady) << "weights in this machine's memory";
  d.send(OwnerReport{Owner::kReady, "", "o1", true});
  EXPECT_EQ(d.core.phase(), Phase::kError);
  EXPECT_NE(d.core.reason().find("gpuhealthd sees none"), std::string::npos) << d.core.reason();
  d.send(GpuReport{Gpu::kHealthy, "", true});
  EXPECT_EQ(d.core.phase(), Phase::kReady);
  d.send(GpuReport{Gpu::kHealthy, "", false});
  d.send(OwnerReport{Owner::kReady, "", "o1", false});
  EXPECT_EQ(d.core.phase(), Phase::kReady);
}

TEST(Core, APeersRestartIsNotAFaultButItsAbsenceIs) {
  Driver d;
  d.make_ready();
  d.send(GpuReport{Gpu::kUnknown, ""});
  d.send(OwnerReport{Owner::kUnknown, "", ""});
  EXPECT_EQ(d.core.phase(), Phase::kReady);
  d.tick(2'900);
  EXPECT_EQ(d.core.phase(), Phase::kReady);
  EXPECT_LE(d.core.next_wake_ms(), d.now + 200);
  d.tick(200);
  EXPECT_EQ(d.core.phase(), Phase::kError);
  d.send(GpuReport{Gpu::kHealthy, ""});
  EXPECT_NE(d.core.phase(), Phase::kReady);
  d.send(OwnerReport{Owner::kReady, "", "o1"});
  EXPECT_EQ(d.core.phase(), Phase::kReady) << "the same owner came back: nothing to renew";
}

TEST(Core, SilenceAfterABadVerdictDoesNotMakeItGood) {
  Driver d;
  d.make_ready();
  d.send(GpuReport{Gpu::kUnavailable, "lost"});
  d.send(GpuReport{Gpu::kUnknown, ""});
  EXPECT_NE(d.core.phase(), Phase::kReady);
}

TEST(Core, RecyclesInOrderBusyDrainRecyclePrewarmReady) {
  Driver d;
  d.make_ready();
  uint64_t first_prewarm = d.prewarm.op;
  d.now += 100;
  d.send(RecycleWanted{Trigger::kOperator, "test", 5'000});
  EXPECT_EQ(d.core.phase(), Phase::kBusy);
  EXPECT_EQ(d.advertise.state, Phase::kBusy);
  EXPECT_EQ(d.advertise.max_requests, 0u);
  EXPECT_EQ(d.advertise.wait_ms, 5'000);
  EXPECT_EQ(d.recycle.op, 0u) << "not before the requests in flight have ended";
  d.drained();
  EXPECT_EQ(d.core.phase(), Phase::kRecycling);
  EXPECT_EQ(d.recycle.drain_limit_ms, 5'000);
  EXPECT_EQ(d.recycle.reason, "operator");
  d.send(RecycleAnswered{d.recycle.op, 0, true});
  d.runtime(Runtime::kRecycling);
  d.runtime(Runtime::kUnreachable, "");
  d.runtime(Runtime::kInitializing, "b");
  EXPECT_EQ(d.core.phase(), Phase::kRecycling);
  EXPECT_EQ(d.prewarm.op, first_prewarm);
  d.runtime(Runtime::kReady, "b");
  EXPECT_NE(d.prewarm.op, first_prewarm);
  EXPECT_EQ(d.core.phase(), Phase::kRecycling);
  d.now += 250;
  d.prewarmed();
  EXPECT_EQ(d.core.phase(), Phase::kReady);
  EXPECT_EQ(d.core.recycle_count(), 1u);
  EXPECT_EQ(d.core.last_recycle_ms(), 250);
}

TEST(Core, TheRetiredInstanceNeverServesAgain) {
  Driver d;
  d.make_recycling();
  d.send(RecycleAnswered{d.recycle.op, 0, true});
  d.runtime(Runtime::kReady, "a");  // a report that was under way
  EXPECT_EQ(d.core.phase(), Phase::kRecycling);
  d.tick(CoreOptions{}.drain_limit_ms + CoreOptions{}.start_limit_ms);
  EXPECT_EQ(d.core.phase(), Phase::kError);
  d.runtime(Runtime::kReady, "a");
  EXPECT_NE(d.core.phase(), Phase::kReady);
  uint64_t before = d.recycle.op;
  d.tick(2'000);
  EXPECT_EQ(d.core.phase(), Phase::kBusy) << "asked again";
  d.drained();
  EXPECT_GT(d.recycle.op, before);
}

TEST(Core, ALostRecycleCallIsRepeated) {
  Driver d;
  d.make_recycling();
  uint64_t first = d.recycle.op;
  d.send(RecycleAnswered{first, 0, false});
  EXPECT_EQ(d.recycle.op, first);
  d.tick(250);
  EXPECT_GT(d.recycle.op, first);
  d.send(RecycleAnswered{first, 0, true});  // a late answer to the first call means nothing
  d.send(RecycleAnswered{d.recycle.op, 0, false});
  uint64_t second = d.recycle.op;
  d.tick(250);
  EXPECT_GT(d.recycle.op, second);
}

TEST(Core, ADrainThatDoesNotEndIsCutAtItsDeadline) {
  Driver d;
  d.make_ready();
  d.send(RecycleWanted{Trigger::kInterval, "", 1'000});
  d.tick(1'000);
  EXPECT_EQ(d.core.phase(), Phase::kBusy);
  d.tick(2'000);
  EXPECT_EQ(d.core.phase(), Phase::kRecycling);
}

TEST(Core, WithoutARegistrationThereIsNobodyToWaitFor) {
  Driver d;
  d.make_busy();
  d.send(Registration{false});
  EXPECT_EQ(d.core.phase(), Phase::kRecycling);
  Driver e;
  e.all_good();
  e.send(Registration{false});
  e.send(RecycleWanted{Trigger::kOperator, "", 0});
  EXPECT_EQ(e.core.phase(), Phase::kRecycling);
}

TEST(Core, ANewRegistrationHearsTheStateAtOnce) {
  Driver d;
  d.send(Registration{true});
  EXPECT_EQ(d.advertise.state, Phase::kInitializing);
  d.make_recycling();
  d.send(Registration{false});
  uint64_t before = d.advertise.op;
  d.send(Registration{true});
  EXPECT_GT(d.advertise.op, before);
  EXPECT_EQ(d.advertise.state, Phase::kRecycling);
}

TEST(Core, LosingTheRegistrationIsNoErrorAndComesBackWithFreshPairs) {
  Driver d;
  d.make_ready();
  uint64_t pairs = d.prewarm.op;
  d.send(Registration{false});
  EXPECT_EQ(d.core.phase(), Phase::kInitializing);
  d.send(Registration{true});
  EXPECT_GT(d.prewarm.op, pairs);
  EXPECT_NE(d.core.phase(), Phase::kReady);
  d.prewarmed();
  EXPECT_EQ(d.core.phase(), Phase::kReady);
}

TEST(Core, ARuntimeInErrorIsRecycledWithGrowingPatience) {
  Driver d;
  d.make_error();
  d.tick(900);
  EXPECT_EQ(d.core.phase(), Phase::kError);
  d.tick(200);
  EXPECT_EQ(d.core.phase(), Phase::kBusy);
  EXPECT_EQ(d.advertise.wait_ms, 5'000) << "requests of a runtime at fault get little time";
  d.drained();
  d.send(RecycleAnswered{d.recycle.op, 0, true});
  d.runtime(Runtime::kError, "b");
  EXPECT_EQ(d.core.phase(), Phase::kError);
  d.tick(1'500);
  EXPECT_EQ(d.core.phase(), Phase::kError) << "the second wait is longer";
  d.tick(1'000);
  EXPECT_EQ(d.core.phase(), Phase::kBusy);
}

TEST(Core, ARuntimeThatNeverGetsReadyIsRecycled) {
  Driver d;
  d.send(GpuReport{Gpu::kHealthy, ""});
  d.send(OwnerReport{Owner::kReady, "", "o1"});
  d.send(Registration{true});
  d.runtime(Runtime::kInitializing);
  d.tick(CoreOptions{}.start_limit_ms);
  EXPECT_EQ(d.core.phase(), Phase::kError);
  d.tick(1'100);
  EXPECT_EQ(d.core.phase(), Phase::kBusy);
}

TEST(Core, DeviceFaultsAreNotAnsweredByRecyclesButByOneOnceTheyAreOver) {
  Driver d;
  d.make_ready();
  d.send(GpuReport{Gpu::kUnavailable, "XID 79"});
  for (int i = 0; i < 100; ++i) d.tick(1'000);
  EXPECT_EQ(d.core.phase(), Phase::kError);
  EXPECT_EQ(d.recycle.op, 0u);
  EXPECT_GT(d.core.next_wake_ms(), d.now - 100'000);
  d.send(GpuReport{Gpu::kHealthy, ""});
  EXPECT_EQ(d.core.phase(), Phase::kBusy);
  d.drained();
  d.send(RecycleAnswered{d.recycle.op, 0, true});
  d.runtime(Runtime::kReady, "b");
  d.prewarmed();
  EXPECT_EQ(d.core.phase(), Phase::kReady);
}

TEST(Core, ARestartedOwnerMeansARuntimeThatAttachesAnew) {
  Driver d;
  d.make_ready();
  d.send(OwnerReport{Owner::kUnknown, "", ""});
  d.send(OwnerReport{Owner::kLoading, "", "o2"});
  EXPECT_EQ(d.core.phase(), Phase::kBusy);
  EXPECT_NE(d.core.reason().find("the model owner"), std::string::npos);
}

TEST(Core, RecyclesByTimeWithJitterOfItsOwn) {
  CoreOptions o;
  o.recycle_interval_ms = 100'000;
  o.recycle_jitter = 0.2;
  std::set<int64_t> drawn;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    o.jitter_seed = seed;
    Core core(o, 0);
    EXPECT_GE(core.next_recycle_at_ms(), 80'000);
    EXPECT_LE(core.next_recycle_at_ms(), 120'000);
    drawn.insert(core.next_recycle_at_ms());
  }
  EXPECT_GT(drawn.size(), 150u) << "a fleet that booted together must not recycle together";
  Driver d(o);
  d.make_ready();
  d.tick(120'001);
  EXPECT_EQ(d.core.phase(), Phase::kBusy);
  EXPECT_EQ(d.advertise.reason, "recycle interval");
}

TEST(Core, DrainHoldsUntilResumeEvenAcrossARecycle) {
  Driver d;
  d.make_ready();
  d.send(DrainWanted{700});
  EXPECT_EQ(d.core.phase(), Phase::kBusy);
  EXPECT_EQ(d.advertise.wait_ms, 700);
  EXPECT_FALSE(d.core.drain_answered());
  d.send(Advertised{d.advertise.op, true, 3});
  EXPECT_TRUE(d.core.drain_answered());
  EXPECT_EQ(d.core.in_flight(), 3u);
  d.tick(60'000);
  EXPECT_EQ(d.core.phase(), Phase::kBusy);
  d.send(RecycleWanted{Trigger::kOperator, "", 0});
  d.drained();
  d.send(RecycleAnswered{d.recycle.op, 0, true});
  d.runtime(Runtime::kReady, "b");
  d.prewarmed();
  EXPECT_EQ(d.core.phase(), Phase::kBusy);
  EXPECT_EQ(d.core.recycle_count(), 1u);
  d.send(ResumeWanted{});
  EXPECT_EQ(d.core.phase(), Phase::kReady);
}

TEST(Core, ADrainedNodeStillShowsItsFaults) {
  Driver d;
  d.make_ready();
  d.send(DrainWanted{0});
  d.send(GpuReport{Gpu::kUnavailable, "lost"});
  EXPECT_EQ(d.core.phase(), Phase::kError);
}

TEST(Core, PairsThatDoNotComeAreAskedForAgainAndShownAtTheDeadline) {
  Driver d;
  d.all_good();
  uint64_t first = d.prewarm.op;
  d.send(PrewarmedRestarted{first, false});
  EXPECT_EQ(d.prewarm.op, first);
  d.tick(250);
  EXPECT_GT(d.prewarm.op, first);
  uint64_t second = d.prewarm.op;
  d.tick(20'000);  // no answer at all
  EXPECT_GT(d.prewarm.op, second);
  d.send(PrewarmedRestarted{second, true});
  EXPECT_NE(d.core.phase(), Phase::kReady) << "an answer to a call that was given up";
  d.tick(60'000);
  EXPECT_EQ(d.core.phase(), Phase::kError);
  d.prewarmed();
  EXPECT_EQ(d.core.phase(), Phase::kReady);
}

TEST(Core, AnInstanceThatChangesBehindOurBackMakesThePairsStale) {
  Driver d;
  d.make_ready();
  uint64_t pairs = d.prewarm.op;
  d.runtime(Runtime::kReady, "b");
  EXPECT_NE(d.core.phase(), Phase::kReady);
  EXPECT_GT(d.prewarm.op, pairs);
  d.prewarmed();
  EXPECT_EQ(d.core.phase(), Phase::kReady);
}

TEST(Core, ReadyIsSaidAgainNowAndThen) {
  Driver d;
  d.make_ready();
  uint64_t before = d.advertise.op;
  EXPECT_EQ(d.core.next_wake_ms(), d.now + 5'000);
  d.tick(5'000);
  EXPECT_GT(d.advertise.op, before);
}

TEST(Core, ANodeOfTwoRuntimesWaitsForBothAndRecyclesBoth) {
  CoreOptions o = options();
  o.runtimes = 2;
  Driver d(o);
  d.all_good();
  EXPECT_EQ(d.prewarm.op, 0u);
  d.send(RuntimeReport{1, Runtime::kReady, "x", ""});
  d.prewarmed();
  ASSERT_EQ(d.core.phase(), Phase::kReady);
  d.send(RecycleWanted{Trigger::kInterval, "", 0});
  auto sent = of_kind<SendRecycle>(d.send(Advertised{d.advertise.op, true, 0}));
  ASSERT_EQ(sent.size(), 2u);
  for (const SendRecycle& s : sent) d.send(RecycleAnswered{s.op, s.index, true});
  d.runtime(Runtime::kReady, "b");
  d.send(RuntimeReport{1, Runtime::kReady, "x", ""});
  EXPECT_EQ(d.core.phase(), Phase::kRecycling);
  d.send(RuntimeReport{1, Runtime::kReady, "y", ""});
  d.prewarmed();
  EXPECT_EQ(d.core.phase(), Phase::kReady);
}

TEST(Core, ARuntimeThatNeedsAWarmUpIsToldOnceAndGivenTime) {
  Driver d;
  d.send(GpuReport{Gpu::kHealthy, ""});
  d.send(OwnerReport{Owner::kReady, "", "o1"});
  d.send(Registration{true});
  auto sent = of_kind<SendWarmup>(d.send(RuntimeReport{0, Runtime::kNeedsWarmup, "a", ""}));
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_TRUE(of_kind<SendWarmup>(d.send(RuntimeReport{0, Runtime::kNeedsWarmup, "a", ""})).empty());
  d.send(WarmupAnswered{sent[0].op, 0, false});
  sent = of_kind<SendWarmup>(d.tick(250));
  ASSERT_EQ(sent.size(), 1u) << "a lost call is repeated";
  d.send(WarmupAnswered{sent[0].op, 0, true});
  d.runtime(Runtime::kInitializing);
  d.tick(CoreOptions{}.start_limit_ms + 1'000);
  EXPECT_EQ(d.core.phase(), Phase::kInitializing) << "warming takes longer than a start";
  d.runtime(Runtime::kUnreachable, "");
  d.runtime(Runtime::kReady, "b");
  d.prewarmed();
  EXPECT_EQ(d.core.phase(), Phase::kReady);
}

TEST(Core, ReportsOfRuntimesThatDoNotExistAreIgnored) {
  Driver d;
  d.make_ready();
  d.send(RuntimeReport{7, Runtime::kError, "x", ""});
  d.send(RecycleAnswered{d.recycle.op, 9, true});
  EXPECT_EQ(d.core.phase(), Phase::kReady);
}

TEST(Core, AWarmUpInsideARecycleIsPartOfIt) {
  Driver d;
  d.make_recycling();
  d.send(RecycleAnswered{d.recycle.op, 0, true});
  d.runtime(Runtime::kUnreachable, "");
  d.runtime(Runtime::kInitializing, "b");
  d.runtime(Runtime::kNeedsWarmup, "b");
  d.send(WarmupAnswered{d.warmup.op, 0, true});
  // It has warmed the cache, ends, and a third one restores what it sealed.
  for (auto [state, instance] : {std::pair(Runtime::kInitializing, "b"), std::pair(Runtime::kRecycling, "b"),
                                 std::pair(Runtime::kUnreachable, ""), std::pair(Runtime::kInitializing, "c")}) {
    d.runtime(state, instance);
    EXPECT_EQ(d.core.phase(), Phase::kRecycling) << runtime_name(state) << ": " << d.core.reason();
    EXPECT_TRUE(d.core.recycling());
  }
  d.runtime(Runtime::kReady, "c");
  d.prewarmed();
  EXPECT_EQ(d.core.phase(), Phase::kReady);
  EXPECT_EQ(d.core.recycle_count(), 1u);
  EXPECT_EQ(d.core.runtime(0).last_fault, "");
}

TEST(Core, TheLastFaultOfARuntimeOutlivesIt) {
  Driver d;
  d.make_ready();
  d.now += 100;
  d.send(RuntimeReport{0, Runtime::kError, "a", "the runtime has exited: it was killed or crashed"});
  EXPECT_EQ(d.core.phase(), Phase::kError);
  d.runtime(Runtime::kUnreachable, "");
  d.runtime(Runtime::kInitializing, "b");
  d.runtime(Runtime::kReady, "b");
  d.prewarmed();
  EXPECT_EQ(d.core.phase(), Phase::kReady);
  EXPECT_EQ(d.core.runtime(0).last_fault, "the runtime has exited: it was killed or crashed");
  EXPECT_EQ(d.core.runtime(0).last_fault_ms, 101);
  d.send(RecycleWanted{Trigger::kOperator, "why", 0});
  d.send(RuntimeReport{0, Runtime::kError, "b", "draining went wrong"});
  EXPECT_EQ(d.core.runtime(0).last_fault, "the runtime has exited: it was killed or crashed") << "b was told to go";
}

}  // namespace
}  // namespace tie::controller
