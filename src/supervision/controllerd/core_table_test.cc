// The whole table of state x event, then every sequence of four events.
#include <functional>
#include <map>

#include "supervision/controllerd/testing/core_driver.h"

namespace tie::controller {
namespace {

using testing::Driver;
using testing::of_kind;

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
      {"load report", [](Driver&) { return LoadReport{7, {}}; }},
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
  // The columns: gpu h d u ?, owner r l e ?, runtime ready-a ready-b init err rec warm gone, reg unreg, adv advfail,
  // acc ref, pre prefail, load, warm-up told lost, recycle drain resume tick.
  struct Row {
    const char* name;
    Make make;
    const char* next;
  };
  // clang-format off
  const Row rows[] = {
      //                                     gpu    owner  runtime   reg  adv  rec  pre  ld  warm wanted
      {"ready", &Driver::make_ready,         "REER" "RRER" "RIIEIIE" "II" "RR" "RR" "RR" "R" "RR" "BBRR"},
      {"busy", &Driver::make_busy,           "BBBB" "BBBB" "BBBBBBB" "BC" "CC" "BB" "BB" "B" "BB" "BBBB"},
      {"recycling", &Driver::make_recycling, "CEEC" "CCEC" "CCCCCCC" "CC" "CC" "CC" "CC" "C" "CC" "CCCC"},
      {"error", &Driver::make_error,         "EEEE" "EEEE" "REIEIII" "EE" "EE" "EE" "EE" "E" "EE" "BEEE"},
  };
  // clang-format on
  const std::map<char, Phase> letters = {{'I', Phase::kInitializing},
                                         {'R', Phase::kReady},
                                         {'B', Phase::kBusy},
                                         {'C', Phase::kRecycling},
                                         {'E', Phase::kError}};
  for (const Row& row : rows) {
    ASSERT_EQ(std::string_view(row.next).size(), all_events().size()) << row.name;
    for (size_t i = 0; i < all_events().size(); ++i) {
      Driver d;
      (d.*row.make)();
      const NamedEvent& event = all_events()[i];
      d.send(event.event(d));
      EXPECT_EQ(phase_name(d.core.phase()), std::string(phase_name(letters.at(row.next[i]))))
          << row.name << " x " << event.name;
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
  bool may_be_ready() const {
    return runtime == Runtime::kReady && registered && gpu != Gpu::kDegraded && gpu != Gpu::kUnavailable &&
           owner != Owner::kError;
  }
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
    for (const Advertise& a : of_kind<Advertise>(d.commands))
      ready_said = ready_said || (a.state == Phase::kReady && a.max_requests > 0);
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
