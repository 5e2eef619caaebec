// Every rule of the state machine as a sentence, then the whole table of state x event, then every sequence of events up to a length.
#include "supervision/controllerd/core.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

namespace tie::controller {
namespace {

CoreOptions options() {
  CoreOptions o;
  o.recycle_interval_ms = 0;
  return o;
}

template <typename T>
std::vector<T> of_kind(const std::vector<Command>& commands) {
  std::vector<T> out;
  for (const Command& command : commands)
    if (const T* c = std::get_if<T>(&command)) out.push_back(*c);
  return out;
}

// A core with a clock and a memory of the last commands.
struct Driver {
  explicit Driver(CoreOptions o = options()) : core(o, 0) {}
  std::vector<Command> send(const Event& event) {
    commands = core.handle(event, now);
    for (const Command& c : commands) {
      if (auto* a = std::get_if<Advertise>(&c)) advertise = *a;
      if (auto* r = std::get_if<SendRecycle>(&c)) recycle = *r;
      if (auto* p = std::get_if<RestartPrewarmed>(&c)) prewarm = *p;
      if (auto* w = std::get_if<SendWarmup>(&c)) warmup = *w;
    }
    return commands;
  }
  std::vector<Command> tick(int64_t ms) {
    now += ms;
    return send(Tick{});
  }
  void runtime(Runtime state, const std::string& instance = "a") { send(RuntimeReport{0, state, instance, "m"}); }
  void all_good(const std::string& instance = "a") {
    send(GpuReport{Gpu::kHealthy, ""});
    send(OwnerReport{Owner::kReady, "", "o1"});
    runtime(Runtime::kReady, instance);
    send(Registration{true});
  }
  void prewarmed() { send(PrewarmedRestarted{prewarm.op, true}); }
  void make_ready() {
    all_good();
    prewarmed();
    ASSERT_EQ(core.phase(), Phase::kReady);
  }
  void make_busy() {
    make_ready();
    send(RecycleWanted{Trigger::kOperator, "why", 0});
    ASSERT_EQ(core.phase(), Phase::kBusy);
  }
  void drained() { send(Advertised{advertise.op, true, 0}); }
  void make_recycling() {
    make_busy();
    drained();
    ASSERT_EQ(core.phase(), Phase::kRecycling);
  }
  void make_error() {
    make_ready();
    runtime(Runtime::kError);
    ASSERT_EQ(core.phase(), Phase::kError);
  }

  Core core;
  int64_t now = 1;
  std::vector<Command> commands;
  Advertise advertise;
  SendRecycle recycle;
  RestartPrewarmed prewarm;
  SendWarmup warmup;
};

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
      GpuReport{Gpu::kDegraded, "hot"}, GpuReport{Gpu::kUnavailable, "lost"}, OwnerReport{Owner::kError, "m", "o1"}, RuntimeReport{0, Runtime::kError, "a", "x"},
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

// --- the table: phase x event → phase ---

using Make = void (Driver::*)();
struct NamedEvent {
  const char* name;
  std::function<Event(Driver&)> event;
};

const std::vector<NamedEvent>& all_events() {
  static const std::vector<NamedEvent> events = {
      {"gpu healthy", [](Driver&) { return GpuReport{Gpu::kHealthy, ""}; }},
      {"gpu degraded", [](Driver&) { return GpuReport{Gpu::kDegraded, "d"}; }},
      {"gpu unavailable", [](Driver&) { return GpuReport{Gpu::kUnavailable, "u"}; }},
      {"gpu unknown", [](Driver&) { return GpuReport{Gpu::kUnknown, ""}; }},
      {"owner ready", [](Driver&) { return OwnerReport{Owner::kReady, "", "o1"}; }},
      {"owner loading", [](Driver&) { return OwnerReport{Owner::kLoading, "", "o1"}; }},
      {"owner error", [](Driver&) { return OwnerReport{Owner::kError, "e", "o1"}; }},
      {"owner unknown", [](Driver&) { return OwnerReport{Owner::kUnknown, "", ""}; }},
      {"runtime ready a", [](Driver&) { return RuntimeReport{0, Runtime::kReady, "a", ""}; }},
      {"runtime ready b", [](Driver&) { return RuntimeReport{0, Runtime::kReady, "b", ""}; }},
      {"runtime initializing b", [](Driver&) { return RuntimeReport{0, Runtime::kInitializing, "b", ""}; }},
      {"runtime error a", [](Driver&) { return RuntimeReport{0, Runtime::kError, "a", "e"}; }},
      {"runtime recycling a", [](Driver&) { return RuntimeReport{0, Runtime::kRecycling, "a", ""}; }},
      {"runtime needs warmup b", [](Driver&) { return RuntimeReport{0, Runtime::kNeedsWarmup, "b", ""}; }},
      {"runtime unreachable", [](Driver&) { return RuntimeReport{0, Runtime::kUnreachable, "", ""}; }},
      {"registered", [](Driver&) { return Registration{true}; }},
      {"unregistered", [](Driver&) { return Registration{false}; }},
      {"advertised", [](Driver& d) { return Advertised{d.advertise.op, true, 0}; }},
      {"advertise failed", [](Driver& d) { return Advertised{d.advertise.op, false, 0}; }},
      {"recycle accepted", [](Driver& d) { return RecycleAnswered{d.recycle.op, 0, true}; }},
      {"recycle refused", [](Driver& d) { return RecycleAnswered{d.recycle.op, 0, false}; }},
      {"prewarmed", [](Driver& d) { return PrewarmedRestarted{d.prewarm.op, true}; }},
      {"prewarm failed", [](Driver& d) { return PrewarmedRestarted{d.prewarm.op, false}; }},
      {"warmup told", [](Driver& d) { return WarmupAnswered{d.warmup.op, 0, true}; }},
      {"warmup lost", [](Driver& d) { return WarmupAnswered{d.warmup.op, 0, false}; }},
      {"recycle wanted", [](Driver&) { return RecycleWanted{Trigger::kOperator, "r", 1'000}; }},
      {"drain wanted", [](Driver&) { return DrainWanted{1'000}; }},
      {"resume wanted", [](Driver&) { return ResumeWanted{}; }},
      {"tick", [](Driver&) { return Tick{}; }},
  };
  return events;
}

TEST(CoreTable, EveryStateMeetsEveryEvent) {
  // One letter per event of all_events(), in order: Initializing, Ready, Busy, Recycling ("C"), Error.
  // The columns: gpu h d u ?, owner r l e ?, runtime ready-a ready-b init err rec warm gone, reg unreg, adv advfail, acc ref, pre prefail, recycle drain resume tick.
  struct Row {
    const char* name;
    Make make;
    const char* next;
  };
  const Row rows[] = {
      //                                  gpu     owner   runtime    reg  adv  rec  pre  warm wanted
      {"ready", &Driver::make_ready,         "REER" "RRER" "RIIEIIE" "II" "RR" "RR" "RR" "RR" "BBRR"},
      {"busy", &Driver::make_busy,           "BBBB" "BBBB" "BBBBBBB" "BC" "CC" "BB" "BB" "BB" "BBBB"},
      {"recycling", &Driver::make_recycling, "CEEC" "CCEC" "CCCCCCC" "CC" "CC" "CC" "CC" "CC" "CCCC"},
      {"error", &Driver::make_error,         "EEEE" "EEEE" "REIEIII" "EE" "EE" "EE" "EE" "EE" "BEEE"},
  };
  const std::map<char, Phase> letters = {{'I', Phase::kInitializing}, {'R', Phase::kReady}, {'B', Phase::kBusy}, {'C', Phase::kRecycling}, {'E', Phase::kError}};
  for (const Row& row : rows) {
    ASSERT_EQ(std::string_view(row.next).size(), all_events().size()) << row.name;
    for (size_t i = 0; i < all_events().size(); ++i) {
      Driver d;
      (d.*row.make)();
      const NamedEvent& event = all_events()[i];
      d.send(event.event(d));
      EXPECT_EQ(phase_name(d.core.phase()), std::string(phase_name(letters.at(row.next[i])))) << row.name << " x " << event.name;
    }
  }
}

// --- every sequence ---

// What the events themselves have said; the core's own view is not consulted.
struct Truth {
  Gpu gpu = Gpu::kUnknown;
  Owner owner = Owner::kUnknown;
  Runtime runtime = Runtime::kUnreachable;
  bool registered = false;
  void see(const Event& event) {
    if (auto* e = std::get_if<GpuReport>(&event)) gpu = e->health;
    if (auto* e = std::get_if<OwnerReport>(&event)) owner = e->state;
    if (auto* e = std::get_if<RuntimeReport>(&event); e && e->index == 0) runtime = e->state;
    if (auto* e = std::get_if<Registration>(&event)) registered = e->registered;
  }
  bool may_be_ready() const { return runtime == Runtime::kReady && registered && gpu != Gpu::kDegraded && gpu != Gpu::kUnavailable && owner != Owner::kError; }
};

void explore(const Driver& from, const Truth& truth, int depth, uint64_t& visited) {
  for (const NamedEvent& named : all_events()) {
    Driver d = from;
    Truth now = truth;
    d.now += 50;
    Event event = named.event(d);
    now.see(event);
    d.send(event);
    ++visited;
    bool ready_said = false;
    for (const Advertise& a : of_kind<Advertise>(d.commands)) ready_said = ready_said || (a.state == Phase::kReady && a.max_requests > 0);
    if (d.core.phase() == Phase::kReady || ready_said) {
      ASSERT_TRUE(now.may_be_ready()) << "ready after " << named.name;
    }
    ASSERT_GE(d.core.next_wake_ms(), 0);
    if (depth > 1) {
      ASSERT_NO_FATAL_FAILURE(explore(d, now, depth - 1, visited));
    }
  }
}

TEST(CoreSequences, NoneOfTheMillionOfThemServesWithAnUnmetCondition) {
  uint64_t visited = 0;
  const Make starts[] = {&Driver::make_ready, &Driver::make_busy, &Driver::make_recycling, &Driver::make_error};
  for (Make make : starts) {
    Driver d;
    (d.*make)();
    Truth truth{Gpu::kHealthy, Owner::kReady, make == &Driver::make_error ? Runtime::kError : Runtime::kReady, true};
    ASSERT_NO_FATAL_FAILURE(explore(d, truth, 4, visited));
  }
  EXPECT_GT(visited, 1'000'000u);
}

}  // namespace
}  // namespace tie::controller
