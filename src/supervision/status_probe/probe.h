// The probe's state and its two activities: the canary loop and the recycle. Independent of gRPC.
// States: initializing → ready ⇄ error; needs_warmup when the runtime says so; recycling is final. A ready runtime that
// fails a canary is in error and may become ready again; a runtime whose process has exited stays in error, with the
// reason that it left in its end note (os/end_note.h), unless it had warmed the prefix cache: that is its plan, and the
// container ends as after a recycle. Threads:
// run() blocks its caller (main) and has one more thread for the
// liveness calls; status(), wait_change(), request_recycle(), stop() any.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "supervision/status_probe/canary.h"
#include "supervision/status_probe/liveness.h"
#include "supervision/status_probe/runtime_process.h"

namespace tie::probe {

// Numbers as in proto/probe.proto.
enum class State : uint8_t { kInitializing = 1, kReady = 2, kError = 3, kRecycling = 4, kNeedsWarmup = 5 };
const char* state_name(State state);

struct ProbeOptions {
  CanaryOptions canary;
  pid_t runtime_pid = 0;
  int64_t starting_interval_ms = 20;  // between canaries until the first passes
  int64_t ready_interval_ms = 2'000;
  int64_t canary_deadline_ms = 10'000;  // a loaded node still gives a token in this time
  int64_t liveness_interval_ms = 500;   // between calls that cost the runtime nothing
  int64_t liveness_deadline_ms = 1'500;
  int liveness_misses = 2;  // so many silent calls in a row: stopped or deadlocked, without waiting for the canary
  int64_t default_drain_ms = 15 * 60'000;
  int64_t max_drain_ms = 60 * 60'000;
  int64_t unattended_ms = 10'000;  // a dead runtime that nobody recycles ends the container after this
};

struct Status {
  State state = State::kInitializing;
  std::string message;
  std::string instance_id;
  int64_t started_ms = 0;
  int64_t canary_ms = 0;
  uint64_t version = 0;  // grows with every change of state or message
};

class Probe {
 public:
  explicit Probe(ProbeOptions options);

  // Returns when the container should end: after a recycle, after stop(), or when a dead runtime stays unattended.
  Result<void> run();
  void stop();

  Status status() const;
  // The status as soon as its version differs from `seen_version`, or at the deadline.
  Status wait_change(uint64_t seen_version, Deadline deadline) const;
  const std::string& model() const { return options_.canary.model; }
  // run() is over: the present status is the last one.
  bool leaving() const;
  // Starts the drain. drain_limit_ms 0 = default. Repeated requests join the one in progress.
  std::string request_recycle(uint32_t drain_limit_ms);
  // Tells the runtime to warm its prefix cache. kFailedPrecondition unless the state is needs_warmup.
  Result<std::string> request_warmup();
  // Runs a canary now (after one in progress): its duration or why it failed.
  Result<int64_t> canary_now();

 private:
  void set_state(State state, std::string message);
  Result<int64_t> run_canary();
  void judge(const Result<int64_t>& outcome);
  bool wait_for_next(int64_t ms);
  bool note_exit();
  void recycle();
  void watch_liveness();

  ProbeOptions options_;
  Canary canary_;
  RuntimeProcess process_;   // the run() thread only
  std::mutex canary_mutex_;  // one canary at a time
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  Status status_;
  bool stopped_ = false;
  bool recycle_wanted_ = false;
  bool warmup_wanted_ = false;
  bool warmup_told_ = false;  // the run() thread only
  bool leaving_ = false;      // run() is over
  int64_t drain_ms_ = 0;
  int64_t dead_since_ms_ = 0;
};

}  // namespace tie::probe
