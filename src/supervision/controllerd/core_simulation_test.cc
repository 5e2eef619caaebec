// A whole node in simulated time: the core among peers that crash, hang, restart and whose messages are late or lost,
// all drawn from one seed. What is proved for each seed: cloudboardd never routes to a runtime that has been unready
// for longer than the longest possible news takes; no instance that was told to go serves after its successor was asked
// for; and when the faults stop, the node becomes ready and stays so. One seed alone: TIE_SIM_SEED=n.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <string>

#include "supervision/controllerd/core.h"

namespace tie::controller {
namespace {

constexpr int64_t kNewsLimitMs = 5'000 + 2'000 + 500;  // a silent stream is noticed, the state is said, with margin
constexpr int64_t kChaosMs = 600'000;
constexpr int64_t kCalmMs = 240'000;
constexpr int64_t kHealMs = 60'000;
constexpr int64_t kLongestRecycleMs = 30'000;

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed), core_(options(), 0) {
    connect_gpu();
    connect_owner();
    connect_probe();
    connect_cloudboard();
    at(1, [this] { start_runtime(); });
    at(1, [this] { chaos(); });
    at(1'000, [this] { watch_truth(); });
  }

  // Returns what went wrong, or nothing.
  std::string run() {
    while (!queue_.empty() && failure_.empty() && queue_.top().time <= kChaosMs + kCalmMs) {
      Job job = queue_.top();
      queue_.pop();
      now_ = job.time;
      job.run();
      int64_t wake = core_.next_wake_ms();
      if (wake != planned_tick_) {
        planned_tick_ = wake;
        at(std::max<int64_t>(wake - now_, 5), [this, wake] {
          if (planned_tick_ != wake) return;
          planned_tick_ = -1;
          feed(Tick{});
        });
      }
    }
    return failure_;
  }
  uint64_t recycles() const { return recycles_seen_; }
  uint64_t times_ready() const { return times_ready_; }

 private:
  static CoreOptions options() {
    CoreOptions o;
    o.recycle_interval_ms = 60'000;
    o.recycle_jitter = 0.3;
    o.drain_limit_ms = 20'000;
    o.start_limit_ms = 20'000;
    o.error_backoff_max_ms = 10'000;
    return o;
  }
  struct Job {
    int64_t time;
    uint64_t order;
    std::function<void()> run;
    bool operator<(const Job& other) const { return std::tie(time, order) > std::tie(other.time, other.order); }
  };

  void at(int64_t delay, std::function<void()> run) { queue_.push({now_ + delay, order_++, std::move(run)}); }
  bool chance(double p) { return calm() ? false : std::uniform_real_distribution<>(0, 1)(random_) < p; }
  int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  bool calm() const { return now_ >= kChaosMs; }
  int64_t network() { return calm() ? 1 : between(1, 50); }

  void feed(const Event& event) {
    for (const Command& command : core_.handle(event, now_))
      std::visit([this](const auto& c) { carry_out(c); }, command);
  }

  // --- the links: in order, late, and broken now and then; a broken one is noticed within 5 s and made anew ---
  struct Link {
    bool up = false;
    uint64_t generation = 0;
    int64_t last_arrival = 0;
  };
  void deliver(Link& link, Event event) {
    if (!link.up) return;
    link.last_arrival = std::max(link.last_arrival, now_ + network());
    at(link.last_arrival - now_, [this, &link, generation = link.generation, event] {
      if (link.up && link.generation == generation) feed(event);
    });
  }
  void break_link(Link& link, int64_t noticed_after, Event lost, std::function<void()> again) {
    if (!link.up) return;
    link.up = false;
    uint64_t generation = ++link.generation;
    at(noticed_after, [this, &link, generation, lost, again] {
      if (link.generation != generation) return;
      feed(lost);
      again();
    });
  }

  void connect_gpu() {
    if (gpu_down_until_ > now_) return at(100, [this] { connect_gpu(); });
    gpu_link_.up = true;
    ++gpu_link_.generation;
    deliver(gpu_link_, GpuReport{gpu_, ""});
  }
  void connect_owner() {
    if (owner_down_until_ > now_) return at(100, [this] { connect_owner(); });
    owner_link_.up = true;
    ++owner_link_.generation;
    say_owner();
  }
  void say_owner() {
    deliver(owner_link_, OwnerReport{now_ >= owner_loaded_at_ ? Owner::kReady : Owner::kLoading, "", owner_instance_});
  }
  void connect_probe() {
    if (!container_ || hung_) return at(20, [this] { connect_probe(); });
    probe_link_.up = true;
    ++probe_link_.generation;
    say_runtime();
  }
  void say_runtime() { deliver(probe_link_, RuntimeReport{0, runtime_, instance_, ""}); }
  void connect_cloudboard() {
    if (cloudboard_down_until_ > now_) return at(100, [this] { connect_cloudboard(); });
    cloudboard_link_.up = true;
    ++cloudboard_link_.generation;
    cloudboard_state_ = Phase::kInitializing;
    deliver(cloudboard_link_, Registration{true});
  }

  // --- the runtime's container ---
  void start_runtime() {
    container_ = true;
    instance_ = "i" + std::to_string(++instances_);
    set_runtime(Runtime::kInitializing);
    if (chance(0.05)) return;  // hangs while starting
    at(between(100, 3'000), [this, me = instance_] {
      if (instance_ == me && runtime_ == Runtime::kInitializing) set_runtime(Runtime::kReady);
    });
  }
  void set_runtime(Runtime state) {
    if (state != Runtime::kReady && runtime_ == Runtime::kReady) unready_since_ = now_;
    runtime_ = state;
    if (container_) say_runtime();
  }
  void end_container() {
    if (!container_) return;
    container_ = false;
    if (runtime_ == Runtime::kReady) unready_since_ = now_;
    runtime_ = Runtime::kUnreachable;
    break_link(probe_link_, between(1, 30), RuntimeReport{0, Runtime::kUnreachable, "", ""},
               [this] { connect_probe(); });
    at(between(20, 1'000), [this] { start_runtime(); });
  }

  // --- commands ---
  void carry_out(const Advertise& c) {
    uint64_t generation = cloudboard_link_.generation;
    if (!cloudboard_link_.up || chance(0.02)) {  // lost: the shell drops the registration
      at(2'000, [this, c] { feed(Advertised{c.op, false, 0}); });
      return break_link(cloudboard_link_, 2'000, Registration{false}, [this] { connect_cloudboard(); });
    }
    newest_advertise_ = c.op;
    at(network(), [this, c, generation] {
      if (!cloudboard_link_.up || cloudboard_link_.generation != generation || c.op != newest_advertise_) return;
      cloudboard_state_ = c.state;
      if (c.max_requests > 0) {
        ++times_ready_;
        served_instance_ = instance_;
        if (!retired_.empty() && retired_.count(instance_) != 0) failure_ = "a retired instance serves: " + instance_;
      }
      int64_t wait = c.wait_ms == 0 ? 0 : between(0, c.wait_ms);
      at(wait + network(), [this, c] { feed(Advertised{c.op, true, 0}); });
    });
  }
  void carry_out(const SendRecycle& c) {
    bool lost = chance(0.1), answer_lost = chance(0.1);
    at(network(), [this, c, lost, answer_lost] {
      bool heard = !lost && container_ && !hung_;
      if (heard) {
        retired_.insert({instance_, true});
        ++recycles_seen_;
        set_runtime(Runtime::kRecycling);
        at(between(10, 2'000), [this, me = instance_] {
          if (instance_ == me) end_container();
        });
      }
      at(heard && !answer_lost ? network() : 2'000,
         [this, c, ok = heard && !answer_lost] { feed(RecycleAnswered{c.op, 0, ok}); });
    });
  }
  // No prompts in this world.
  void carry_out(const SendWarmup& c) { feed(WarmupAnswered{c.op, c.index, false}); }
  void carry_out(const RestartPrewarmed& c) {
    bool ok = cloudboard_link_.up && !chance(0.05);
    if (!chance(0.02)) at(network() + between(1, 50), [this, c, ok] { feed(PrewarmedRestarted{c.op, ok}); });
  }

  // --- faults ---
  void chaos() {
    if (calm()) return heal();
    switch (between(0, 11)) {
      case 0:
        end_container();
        break;
      case 1:
        if (container_ && runtime_ == Runtime::kReady) set_runtime(Runtime::kError);
        break;
      case 2:
        gpu_ = static_cast<Gpu>(between(1, 3));
        deliver(gpu_link_, GpuReport{gpu_, "x"});
        break;
      case 3:
        gpu_ = Gpu::kHealthy;
        deliver(gpu_link_, GpuReport{gpu_, ""});
        break;
      case 4:
        restart_owner(between(10, 6'000));
        break;
      case 5:
        restart_cloudboard(between(10, 6'000));
        break;
      case 6:
        gpu_down_until_ = now_ + between(10, 6'000);
        break_link(gpu_link_, between(1, 5'000), GpuReport{Gpu::kUnknown, ""}, [this] { connect_gpu(); });
        break;
      case 7:
        break_link(probe_link_, between(1, 5'000), RuntimeReport{0, Runtime::kUnreachable, "", ""},
                   [this] { connect_probe(); });
        break;
      case 8:
        break_link(owner_link_, between(1, 5'000), OwnerReport{Owner::kUnknown, "", ""}, [this] { connect_owner(); });
        break;
      case 9:
        feed(RecycleWanted{Trigger::kOperator, "operator", static_cast<uint32_t>(between(0, 5'000))});
        break;
      case 10:
        restart_controller();
        break;
      case 11:
        hang_probe(between(100, 8'000));
        break;
    }
    at(between(50, 6'000), [this] { chaos(); });
  }
  void restart_owner(int64_t away) {
    owner_down_until_ = now_ + away;
    owner_loaded_at_ = owner_down_until_ + between(100, 2'000);
    owner_instance_ = "o" + std::to_string(++owners_);
    break_link(owner_link_, between(1, 1'000), OwnerReport{Owner::kUnknown, "", ""}, [this] { connect_owner(); });
    at(owner_loaded_at_ - now_ + 1, [this] { say_owner(); });
  }
  void restart_cloudboard(int64_t away) {
    cloudboard_down_until_ = now_ + away;
    cloudboard_state_ = Phase::kInitializing;
    break_link(cloudboard_link_, between(1, 100), Registration{false}, [this] { connect_cloudboard(); });
  }
  void restart_controller() {
    uint64_t recycles = core_.recycle_count();
    (void)recycles;
    CoreOptions o = options();
    o.jitter_seed = random_();
    core_ = Core(o, now_);
    planned_tick_ = -1;
    retired_
        .clear();  // what an earlier controller asked for is not known to the new one, except through the probe's state
    cloudboard_state_ = Phase::kInitializing;  // its stream is gone: not serving
    for (Link* link : {&gpu_link_, &owner_link_, &probe_link_, &cloudboard_link_}) {
      link->up = false;
      ++link->generation;
    }
    connect_gpu();
    connect_owner();
    connect_probe();
    connect_cloudboard();
  }
  // A stopped container: its news do not come, its stream is given up after 5 s.
  void hang_probe(int64_t ms) {
    if (!container_ || hung_) return;
    hung_ = true;
    if (runtime_ == Runtime::kReady) unready_since_ = now_;
    break_link(probe_link_, 5'000, RuntimeReport{0, Runtime::kUnreachable, "", ""}, [this] { connect_probe(); });
    at(ms, [this] { hung_ = false; });
  }
  void heal() {
    gpu_ = Gpu::kHealthy;
    deliver(gpu_link_, GpuReport{gpu_, ""});
    feed(ResumeWanted{});
  }

  void watch_truth() {
    bool truly_ready = container_ && runtime_ == Runtime::kReady && !hung_;
    if (cloudboard_state_ == Phase::kReady && !truly_ready && now_ - unready_since_ > kNewsLimitMs)
      failure_ = "cloudboardd routes to a runtime that is " + std::string(runtime_name(runtime_)) + " for " +
                 std::to_string(now_ - unready_since_) + " ms";
    // After the faults every recycle must end within its drain and start.
    if (cloudboard_state_ == Phase::kReady) last_ready_ = now_;
    if (now_ > kChaosMs + kHealMs && now_ - last_ready_ > kLongestRecycleMs)
      failure_ = std::string("not ready in calm: ") + phase_name(core_.phase()) + " " + core_.reason();
    at(100, [this] { watch_truth(); });
  }

  std::mt19937_64 random_;
  Core core_;
  int64_t now_ = 0;
  uint64_t order_ = 0;
  std::priority_queue<Job> queue_;
  int64_t planned_tick_ = -1;
  std::string failure_;

  Link gpu_link_, owner_link_, probe_link_, cloudboard_link_;
  Gpu gpu_ = Gpu::kHealthy;
  int64_t gpu_down_until_ = 0, owner_down_until_ = 0, owner_loaded_at_ = 0, cloudboard_down_until_ = 0;
  std::string owner_instance_ = "o0", instance_, served_instance_;
  uint64_t owners_ = 0, instances_ = 0, newest_advertise_ = 0, recycles_seen_ = 0, times_ready_ = 0;
  bool container_ = false, hung_ = false;
  Runtime runtime_ = Runtime::kUnreachable;
  int64_t unready_since_ = 0, last_ready_ = 0;
  Phase cloudboard_state_ = Phase::kInitializing;
  std::map<std::string, bool> retired_;
};

TEST(CoreSimulation, NoSeedFindsAPathToServingWithAnUnreadyRuntime) {
  uint64_t first = 1, count = 400;
  if (const char* seed = ::getenv("TIE_SIM_SEED")) {
    first = std::strtoull(seed, nullptr, 10);
    count = 1;
  }
  uint64_t recycles = 0, ready = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Simulation simulation(seed);
    std::string failure = simulation.run();
    ASSERT_EQ(failure, "") << "seed " << seed << " (TIE_SIM_SEED)";
    recycles += simulation.recycles();
    ready += simulation.times_ready();
  }
  EXPECT_GT(recycles, count * 5) << "a simulation in which nothing happens proves nothing";
  EXPECT_GT(ready, count * 10);
}

}  // namespace
}  // namespace tie::controller
