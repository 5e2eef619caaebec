// What the core's tests share: a core with a clock, the last command of each kind, and the ways into each state.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "supervision/controllerd/core.h"

namespace tie::controller::testing {

inline CoreOptions options() {
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

}  // namespace tie::controller::testing
