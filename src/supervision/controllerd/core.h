// The state machine of tie-controllerd: pure, no clock, no thread, no I/O. The shell (node_controller.h) feeds it
// events and carries out its commands; a copy of a Core is a snapshot, so tests and the simulator explore it freely.
// Rule above all: READY is advertised only while the devices are healthy, the owner is ready, every runtime passed its
// canary as a fresh enough instance, the prewarmed pairs belong to these instances, and the node is registered. Every
// wait has a deadline that next_wake_ms() tells. Source: spec "Recycling"; lifecycles of the system design.
//
//   Initializing ──all conditions──▶ Ready ──trigger──▶ Busy ──nothing in flight──▶ Recycling ──fresh instances,
//   conditions──▶ Ready
//        ▲   └────────▶ Error ◀────────┴─ a condition fails                             │
//        └──waiting──────┘ └─ a runtime at fault: recycle after a back-off ─▶ Busy      └─ deadline ─▶ Error
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tie::controller {

// Numbers as NodeState of proto/cloudboard_control.proto.
enum class Phase : uint8_t { kInitializing = 1, kReady = 2, kBusy = 3, kRecycling = 4, kError = 5 };
const char* phase_name(Phase phase);

enum class Gpu : uint8_t { kUnknown, kHealthy, kDegraded, kUnavailable };
enum class Owner : uint8_t { kUnknown, kLoading, kReady, kError };
enum class Runtime : uint8_t { kUnreachable, kInitializing, kReady, kError, kRecycling, kNeedsWarmup };
const char* runtime_name(Runtime state);

struct CoreOptions {
  size_t runtimes = 1;
  uint32_t max_requests = 32;
  int64_t recycle_interval_ms = 3'600'000;  // 0 = never by time
  double recycle_jitter = 0.1;              // share of the interval, drawn anew each time
  uint64_t jitter_seed = 0;
  int64_t drain_limit_ms = 15 * 60'000;  // in-flight requests finish within this
  int64_t error_drain_limit_ms = 5'000;  // likewise when the runtime is at fault
  int64_t start_limit_ms = 60'000;       // a runtime becomes ready within this after its start
  int64_t prewarm_limit_ms = 10'000;
  int64_t warmup_limit_ms = 10 * 60'000;  // the system prompts are computed and a fresh instance is ready within this
  int64_t peer_grace_ms =
      3'000;  // gpuhealthd or the owner may be away this long (a restart) before the node stops serving
  int64_t answer_margin_ms = 2'000;  // beyond a wait that a peer was asked for
  int64_t retry_ms = 200;
  int64_t error_backoff_ms = 1'000;  // doubles with each recycle that did not help
  int64_t error_backoff_max_ms = 60'000;
  int64_t refresh_ms = 5'000;  // READY is advertised again this often: notices a hung cloudboardd
};

enum class Trigger : uint8_t { kInterval, kError, kAssets, kOperator };
const char* trigger_name(Trigger trigger);

// --- events ---
struct GpuReport {
  Gpu health;
  std::string message;
  bool of_gpus = true;  // else the verdict is about a machine without any
};
struct OwnerReport {
  Owner state;
  std::string message;
  std::string instance;
  bool on_gpu = false;  // a model's weights lie in a GPU's memory
};  // another instance: its memory is another
struct RuntimeReport {
  size_t index;
  Runtime state;
  std::string instance;
  std::string message;
};
struct Registration {
  bool registered;
};
// How requests ended since cloudboardd's start (proto/cloudboard_control.proto says what each is).
struct RequestCounts {
  uint64_t completed = 0, refused_busy = 0, refused_key = 0, refused_replay = 0, refused_request = 0;
  uint64_t failed = 0, cancelled = 0, cut = 0;
};
struct Advertised {
  uint64_t op;
  bool ok;
  uint32_t in_flight;
  RequestCounts counts = {};
};  // answer to Advertise
struct LoadReport {
  uint32_t in_flight;
  RequestCounts counts;
};  // cloudboardd, asked just now
struct RecycleAnswered {
  uint64_t op;
  size_t index;
  bool ok;
};  // answer to SendRecycle
struct PrewarmedRestarted {
  uint64_t op;
  bool ok;
};  // answer to RestartPrewarmed
struct RecycleWanted {
  Trigger trigger;
  std::string reason;
  uint32_t drain_limit_ms;
};  // limit 0 = default
struct DrainWanted {
  uint32_t wait_ms;
};
struct ResumeWanted {};
struct Tick {};
struct WarmupAnswered {
  uint64_t op;
  size_t index;
  bool ok;
};  // answer to SendWarmup
using Event = std::variant<WarmupAnswered, GpuReport, OwnerReport, RuntimeReport, Registration, Advertised, LoadReport,
                           RecycleAnswered, PrewarmedRestarted, RecycleWanted, DrainWanted, ResumeWanted, Tick>;

// --- commands ---
struct Advertise {
  uint64_t op = 0;
  Phase state = Phase::kInitializing;
  uint32_t max_requests = 0;
  std::string reason;
  int64_t wait_ms = 0;
};  // a later one replaces an earlier
struct SendRecycle {
  uint64_t op = 0;
  size_t index = 0;
  std::string reason;
  int64_t drain_limit_ms = 0;
};
struct RestartPrewarmed {
  uint64_t op = 0;
};
struct SendWarmup {
  uint64_t op = 0;
  size_t index = 0;
};
using Command = std::variant<Advertise, SendRecycle, SendWarmup, RestartPrewarmed>;

struct RuntimeView {
  Runtime state = Runtime::kUnreachable;
  std::string instance;
  std::string message;
  int64_t since_ms = 0;
  std::string last_fault;  // what the last error said, kept after the runtime was replaced; empty = none yet
  int64_t last_fault_ms = 0;
};

class Core {
 public:
  Core(CoreOptions options, int64_t now_ms);

  // Time never goes backwards between calls.
  std::vector<Command> handle(const Event& event, int64_t now_ms);
  // When a Tick is due at the latest.
  int64_t next_wake_ms() const;

  Phase phase() const { return phase_; }
  const std::string& reason() const { return reason_; }
  int64_t phase_since_ms() const { return phase_since_ms_; }
  Gpu gpu() const { return gpu_; }
  Owner owner() const { return owner_; }
  bool registered() const { return registered_; }
  const std::string& gpu_message() const { return gpu_message_; }
  const std::string& owner_message() const { return owner_message_; }
  const std::string& owner_instance() const { return owner_instance_; }
  int64_t gpu_since_ms() const { return gpu_since_ms_; }
  int64_t owner_since_ms() const { return owner_since_ms_; }
  int64_t registered_since_ms() const { return registered_since_ms_; }
  bool drained_by_operator() const { return drained_; }
  bool recycling() const { return recycle_.has_value(); }
  bool drain_answered() const { return drain_answered_; }  // cloudboardd has answered the present busy state
  uint32_t in_flight() const { return in_flight_; }
  const RequestCounts& request_counts() const { return counts_; }  // as last heard
  uint64_t recycle_count() const { return recycle_count_; }
  int64_t last_recycle_ms() const { return last_recycle_ms_; }
  int64_t next_recycle_at_ms() const { return next_recycle_at_ms_; }  // 0 = never
  uint32_t advertised_max_requests() const { return phase_ == Phase::kReady ? options_.max_requests : 0; }
  RuntimeView runtime(size_t index) const;
  // What keeps the node from being ready; empty when nothing does. The test's oracle computes the same from its own
  // truth.
  std::string unmet_condition(int64_t now_ms) const;

 private:
  struct RuntimeFacts : RuntimeView {
    std::string retired;  // this instance was told, or is to be told, to go; never serve with it again
    bool recycle_accepted = false;
    uint64_t recycle_op = 0;  // 0 = none outstanding
    int64_t retry_at_ms = 0;
    std::string warming;       // the instance that was told to warm the prefix cache
    uint64_t warmup_op = 0;    // 0 = none outstanding
    int64_t warmup_at_ms = 0;  // not again before
  };
  struct Recycle {
    Trigger trigger;
    std::string reason;
    int64_t drain_limit_ms;
    int64_t started_ms;
  };
  enum class Kind : uint8_t { kWaiting, kRuntimeFault, kFault };
  struct Missing {
    Kind kind;
    std::string what;
  };

  void hear(const GpuReport& e, int64_t now_ms);
  void hear(const OwnerReport& e, int64_t now_ms);
  void hear(const RuntimeReport& e, int64_t now_ms);
  void hear(const Registration& e, int64_t now_ms);
  void hear(const Advertised& e, int64_t now_ms);
  void hear(const LoadReport& e, int64_t now_ms);
  void hear(const RecycleAnswered& e, int64_t now_ms);
  void hear(const WarmupAnswered& e, int64_t now_ms);
  void hear(const PrewarmedRestarted& e, int64_t now_ms);
  void hear(const RecycleWanted& e, int64_t now_ms);
  void hear(const DrainWanted& e, int64_t now_ms);
  void hear(const ResumeWanted& e, int64_t now_ms);
  void hear(const Tick& e, int64_t now_ms);
  void advance(int64_t now_ms);
  void advance_busy(int64_t now_ms);
  void settle(int64_t now_ms);
  void settle_unmet(const Missing& missing, int64_t now_ms);
  void plan_error_recycle(const Missing& missing, int64_t now_ms);
  void become_ready(int64_t now_ms);
  bool prewarm(int64_t now_ms);
  void start_recycle(Trigger trigger, std::string reason, int64_t drain_limit_ms, int64_t now_ms);
  void begin_recycling(int64_t now_ms);
  void send_due_recycles(int64_t now_ms);
  void send_due_warmups(int64_t now_ms);
  void enter(Phase phase, std::string reason, int64_t now_ms);
  void advertise(int64_t wait_ms, int64_t now_ms);
  void draw_next_recycle(int64_t now_ms);
  std::optional<Missing> missing(int64_t now_ms) const;
  std::optional<Missing> missing_runtime(const RuntimeFacts& runtime, size_t index) const;
  bool any_reachable() const;
  bool served(int64_t lost_since_ms, int64_t now_ms) const;
  std::string serving_set() const;

  CoreOptions options_;
  Phase phase_ = Phase::kInitializing;
  std::string reason_ = "starting";
  int64_t phase_since_ms_;
  int64_t phase_deadline_ms_;  // 0 = none: waits for a condition that has its own
  Gpu gpu_ = Gpu::kUnknown;
  Owner owner_ = Owner::kUnknown;
  std::string gpu_message_, owner_message_, owner_instance_;
  int64_t gpu_lost_ms_, owner_lost_ms_;  // since when unknown
  bool gpu_seen_ = false, owner_seen_ = false;
  bool verdict_of_gpus_ = true, model_on_gpu_ = false;
  int64_t gpu_since_ms_, owner_since_ms_, registered_since_ms_;  // for display
  bool renewal_due_ = false;  // the runtimes outlived a device fault or hold memory of an earlier owner
  std::string renewal_reason_;
  Trigger renewal_trigger_ = Trigger::kError;
  std::vector<RuntimeFacts> runtimes_;
  bool registered_ = false;
  uint64_t registration_number_ = 0;
  bool drained_ = false;
  std::optional<Recycle> recycle_;
  bool drain_answered_ = false;
  uint32_t in_flight_ = 0;
  RequestCounts counts_;
  std::string prewarmed_for_;  // the serving set whose pairs are warm
  uint64_t prewarm_op_ = 0;
  int64_t prewarm_deadline_ms_ = 0;
  int64_t prewarm_retry_at_ms_ = 0;
  uint64_t next_op_ = 1;
  uint64_t advertise_op_ = 0;
  bool advertise_due_ = false;  // a new registration has not heard our state yet
  int64_t refresh_at_ms_ = 0;
  uint32_t recycles_without_ready_ = 0;
  int64_t error_recycle_at_ms_ = 0;  // 0 = none planned
  int64_t next_recycle_at_ms_ = 0;
  uint64_t jitter_state_;
  uint64_t recycle_count_ = 0;
  int64_t last_recycle_ms_ = 0;
  std::vector<Command> out_;
};

}  // namespace tie::controller
