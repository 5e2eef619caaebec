#include "supervision/status_probe/probe.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/random.h"
#include "os/end_note.h"

namespace tie::probe {
namespace {

constexpr int64_t kLivenessTickMs = 20;               // how soon the runtime's death is noticed between canaries
constexpr const char* kNeedsWarmup = "needs_warmup";  // what the runtime says
constexpr const char* kWarming = "warming the prefix cache";

}  // namespace

const char* state_name(State state) {
  switch (state) {
    case State::kInitializing:
      return "initializing";
    case State::kReady:
      return "ready";
    case State::kError:
      return "error";
    case State::kRecycling:
      return "recycling";
    case State::kNeedsWarmup:
      return "needs_warmup";
  }
  return "error";
}

Probe::Probe(ProbeOptions options)
    : options_(std::move(options)),
      canary_(options_.canary),
      process_(options_.runtime_pid, options_.canary.runtime_socket) {
  status_.instance_id = random_hex(8);
  status_.started_ms = monotonic_ms();
  status_.version = 1;
  status_.message = "waiting for the first canary";
  (void)process_.find();  // at once where its number is known: it may end before the first canary does
}

Status Probe::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

Status Probe::wait_change(uint64_t seen_version, Deadline deadline) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(deadline.remaining_ms()),
                    [&] { return stopped_ || leaving_ || status_.version != seen_version; });
  return status_;
}

bool Probe::leaving() const {
  std::lock_guard lock(mutex_);
  return leaving_;
}

void Probe::set_state(State state, std::string message) {
  std::lock_guard lock(mutex_);
  if (status_.state == State::kRecycling) return;
  if (status_.state == state && status_.message == message) return;
  status_.state = state;
  status_.message = std::move(message);
  ++status_.version;
  changed_.notify_all();
}

std::string Probe::request_recycle(uint32_t drain_limit_ms) {
  set_state(State::kRecycling, "draining");
  std::lock_guard lock(mutex_);
  if (!recycle_wanted_) {
    recycle_wanted_ = true;
    drain_ms_ =
        drain_limit_ms == 0 ? options_.default_drain_ms : std::min<int64_t>(drain_limit_ms, options_.max_drain_ms);
    canary_.cancel();
    changed_.notify_all();
  }
  return status_.instance_id;
}

Result<std::string> Probe::request_warmup() {
  std::lock_guard lock(mutex_);
  // The signal would end a runtime that is not waiting for it.
  if (status_.state != State::kNeedsWarmup)
    return fail(Code::kFailedPrecondition, "the runtime does not need a warm-up");
  warmup_wanted_ = true;
  changed_.notify_all();
  return status_.instance_id;
}

void Probe::stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  canary_.cancel();
  changed_.notify_all();
}

Result<int64_t> Probe::run_canary() {
  std::lock_guard one_at_a_time(canary_mutex_);
  {
    std::lock_guard lock(mutex_);
    if (stopped_ || recycle_wanted_) return fail(Code::kCancelled, "the container is going away");
  }
  return canary_.run(options_.canary_deadline_ms);
}

Result<int64_t> Probe::canary_now() {
  auto outcome = run_canary();
  judge(outcome);
  return outcome;
}

void Probe::judge(const Result<int64_t>& outcome) {
  if (outcome) {
    {
      std::lock_guard lock(mutex_);
      status_.canary_ms = *outcome;
    }
    set_state(State::kReady, "");
    return;
  }
  const Error& error = outcome.error();
  // A full runtime answers, and its requests are the better canary.
  if (error.code == Code::kCancelled || error.code == Code::kOverloaded) return;
  if (error.code == Code::kNotReady && error.message.find(kNeedsWarmup) != std::string::npos)
    return set_state(State::kNeedsWarmup, "the prefix cache is cold");
  if (error.code == Code::kNotReady && error.message.find(kWarming) != std::string::npos)
    return set_state(State::kInitializing, "the prefix cache is being warmed");
  bool starting = error.code == Code::kIo || error.code == Code::kNotReady;
  if (status().state == State::kInitializing && starting)
    return set_state(State::kInitializing, "the runtime is starting");
  set_state(State::kError, "the canary failed: " + error.message);
}

// Once the runtime has exited, says why. True when that was its plan: its note alone does not make it one, since the
// runtime may have been taken over.
bool Probe::note_exit() {
  if (!process_.exited()) return false;
  os::Ended ended = os::read_end_note(os::end_note_path(options_.canary.runtime_socket));
  bool warmed = ended.step == os::EndStep::kWarmed;
  if (warmed && warmup_told_) {
    set_state(State::kRecycling, "the prefix cache is warm; a fresh runtime takes over");
    return true;
  }
  set_state(State::kError, "the runtime has exited: " + ended.sentence() + (warmed ? ", which nobody asked for" : ""));
  return false;
}

// False when there is no next: a recycle or a stop was asked for, the runtime has warmed the prefix cache and ended, or
// it is dead and nobody attends to it.
bool Probe::wait_for_next(int64_t ms) {
  Deadline next = Deadline::in_ms(ms);
  for (;;) {
    (void)process_.find();
    if (process_.exited()) {
      int64_t now = monotonic_ms();
      if (dead_since_ms_ == 0) dead_since_ms_ = now;
      if (note_exit()) return false;
      if (now - dead_since_ms_ >= options_.unattended_ms) return false;
    }
    std::unique_lock lock(mutex_);
    int64_t piece = std::min(next.remaining_ms(), kLivenessTickMs);
    changed_.wait_for(lock, std::chrono::milliseconds(piece),
                      [&] { return stopped_ || recycle_wanted_ || warmup_wanted_; });
    if (stopped_ || recycle_wanted_) return false;
    if (std::exchange(warmup_wanted_, false) && process_.tell_to_warm_up()) warmup_told_ = true;
    if (next.passed() && dead_since_ms_ == 0) return true;
    if (next.passed()) next = Deadline::in_ms(kLivenessTickMs);
  }
}

void Probe::recycle() {
  int64_t drain_ms;
  {
    std::lock_guard lock(mutex_);
    drain_ms = drain_ms_;
  }
  (void)process_.find();
  (void)process_.drain(Deadline::in_ms(drain_ms));
}

// Beside the canary, which a stopped runtime would hold for its whole deadline. Only a runtime that was ready is
// judged: before that it may be busy with its weights.
void Probe::watch_liveness() {
  Liveness liveness(options_.canary.runtime_socket, options_.canary.connect_ms);
  for (int silent = 0;;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::milliseconds(options_.liveness_interval_ms),
                        [&] { return stopped_ || recycle_wanted_ || leaving_; });
      if (stopped_ || recycle_wanted_ || leaving_) return;
      if (status_.state != State::kReady) continue;
    }
    silent = liveness.answers(options_.liveness_deadline_ms) ? 0 : silent + 1;
    if (silent < options_.liveness_misses) continue;
    set_state(State::kError, "the runtime does not answer");
    canary_.cancel();
    silent = 0;
  }
}

Result<void> Probe::run() {
  std::thread liveness([this] { watch_liveness(); });
  for (;;) {
    judge(run_canary());
    bool ready = status().state == State::kReady;
    if (!wait_for_next(ready ? options_.ready_interval_ms : options_.starting_interval_ms)) break;
  }
  std::unique_lock lock(mutex_);
  bool wanted = recycle_wanted_;
  bool stopped = stopped_;
  lock.unlock();
  // Also when we were told to stop: that may be because the runtime has ended.
  bool planned = !wanted && note_exit();
  if (wanted) recycle();  // watched to its end
  lock.lock();
  leaving_ = true;
  changed_.notify_all();
  lock.unlock();
  liveness.join();
  if (!wanted && !stopped && !planned)
    return fail(Code::kRuntimeLost, "the runtime has exited and nobody asked for a recycle");
  return {};
}

}  // namespace tie::probe
