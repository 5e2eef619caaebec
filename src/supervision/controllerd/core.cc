#include "supervision/controllerd/core.h"

#include <algorithm>

namespace tie::controller {
namespace {

constexpr int64_t kIdleTickMs = 60'000;

// splitmix64: jitter needs no secrecy, only that nodes differ (the seed is random).
double next_unit(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<double>((z ^ (z >> 31)) >> 11) / static_cast<double>(uint64_t{1} << 53);
}

}  // namespace

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kInitializing:
      return "initializing";
    case Phase::kReady:
      return "ready";
    case Phase::kBusy:
      return "busy";
    case Phase::kRecycling:
      return "recycling";
    case Phase::kError:
      return "error";
  }
  return "error";
}

const char* runtime_name(Runtime state) {
  switch (state) {
    case Runtime::kUnreachable:
      return "unreachable";
    case Runtime::kInitializing:
      return "initializing";
    case Runtime::kReady:
      return "ready";
    case Runtime::kError:
      return "error";
    case Runtime::kRecycling:
      return "recycling";
    case Runtime::kNeedsWarmup:
      return "needs_warmup";
  }
  return "error";
}

const char* trigger_name(Trigger trigger) {
  switch (trigger) {
    case Trigger::kInterval:
      return "interval";
    case Trigger::kError:
      return "error";
    case Trigger::kAssets:
      return "assets";
    case Trigger::kOperator:
      return "operator";
  }
  return "operator";
}

Core::Core(CoreOptions options, int64_t now_ms)
    : options_(options),
      phase_since_ms_(now_ms),
      phase_deadline_ms_(now_ms + options.start_limit_ms),
      gpu_lost_ms_(now_ms),
      owner_lost_ms_(now_ms),
      gpu_since_ms_(now_ms),
      owner_since_ms_(now_ms),
      registered_since_ms_(now_ms),
      runtimes_(options.runtimes),
      jitter_state_(options.jitter_seed) {
  for (RuntimeFacts& runtime : runtimes_) runtime.since_ms = now_ms;
  draw_next_recycle(now_ms);
}

RuntimeView Core::runtime(size_t index) const {
  return runtimes_.at(index);
}

void Core::draw_next_recycle(int64_t now_ms) {
  if (options_.recycle_interval_ms <= 0) return;
  double swing = (next_unit(jitter_state_) * 2 - 1) * options_.recycle_jitter;
  next_recycle_at_ms_ =
      now_ms +
      std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(options_.recycle_interval_ms) * (1 + swing)));
}

bool Core::any_reachable() const {
  return std::any_of(runtimes_.begin(), runtimes_.end(),
                     [](const RuntimeFacts& r) { return r.state != Runtime::kUnreachable; });
}

// A peer that restarts is away for a moment; what it last said stands for that long.
bool Core::served(int64_t lost_since_ms, int64_t now_ms) const {
  return now_ms - lost_since_ms < options_.peer_grace_ms;
}

std::string Core::serving_set() const {
  std::string out = std::to_string(registration_number_);
  for (const RuntimeFacts& runtime : runtimes_) out += "/" + runtime.instance;
  return out;
}

std::optional<Core::Missing> Core::missing_runtime(const RuntimeFacts& runtime, size_t index) const {
  std::string who = runtimes_.size() == 1 ? "the runtime" : "runtime " + std::to_string(index);
  bool retired = !runtime.retired.empty() && runtime.instance == runtime.retired;
  switch (runtime.state) {
    case Runtime::kUnreachable:
      return Missing{phase_ == Phase::kReady ? Kind::kFault : Kind::kWaiting, who + " is not reachable"};
    case Runtime::kInitializing:
      return Missing{Kind::kWaiting, who + " is starting"};
    case Runtime::kRecycling:
      return Missing{Kind::kWaiting, who + " is going away"};
    case Runtime::kNeedsWarmup:
      return Missing{Kind::kWaiting, who + " needs its prefix cache warmed"};
    case Runtime::kError:
      return Missing{retired ? Kind::kWaiting : Kind::kRuntimeFault, who + " is in error: " + runtime.message};
    case Runtime::kReady:
      break;
  }
  if (retired)
    return Missing{phase_ == Phase::kRecycling ? Kind::kWaiting : Kind::kRuntimeFault,
                   who + " has not been recycled yet"};
  return std::nullopt;
}

std::optional<Core::Missing> Core::missing(int64_t now_ms) const {
  if (gpu_ == Gpu::kDegraded || gpu_ == Gpu::kUnavailable)
    return Missing{Kind::kFault, "devices are not healthy: " + gpu_message_};
  if (gpu_ == Gpu::kUnknown && !(gpu_seen_ && served(gpu_lost_ms_, now_ms)))
    return Missing{gpu_seen_ ? Kind::kFault : Kind::kWaiting, "gpuhealthd does not answer"};
  if (model_on_gpu_ && !verdict_of_gpus_)
    return Missing{Kind::kFault, "a model lies on a GPU, and gpuhealthd sees none"};
  if (owner_ == Owner::kError) return Missing{Kind::kFault, "the model owner is in error: " + owner_message_};
  if (owner_ == Owner::kLoading && !(owner_seen_ && served(owner_lost_ms_, now_ms)))
    return Missing{Kind::kWaiting, "the model owner is loading"};
  if (owner_ == Owner::kUnknown && !(owner_seen_ && served(owner_lost_ms_, now_ms)))
    return Missing{owner_seen_ ? Kind::kFault : Kind::kWaiting, "the model owner does not answer"};
  for (size_t i = 0; i < runtimes_.size(); ++i)
    if (auto unmet = missing_runtime(runtimes_[i], i)) return unmet;
  if (!registered_) return Missing{Kind::kWaiting, "not registered with cloudboardd"};
  return std::nullopt;
}

std::string Core::unmet_condition(int64_t now_ms) const {
  auto unmet = missing(now_ms);
  return unmet ? unmet->what : "";
}

std::vector<Command> Core::handle(const Event& event, int64_t now_ms) {
  out_.clear();
  std::visit([&](const auto& e) { hear(e, now_ms); }, event);
  advance(now_ms);
  if (advertise_due_) advertise(0, now_ms);
  return std::move(out_);
}

void Core::advance(int64_t now_ms) {
  if (next_recycle_at_ms_ != 0 && now_ms >= next_recycle_at_ms_ && !recycle_) {
    // A runtime that is away holds nobody's data; the next one is young.
    if (any_reachable()) {
      start_recycle(Trigger::kInterval, "recycle interval", options_.drain_limit_ms, now_ms);
    } else {
      draw_next_recycle(now_ms);
    }
  }
  if (phase_ == Phase::kBusy) return advance_busy(now_ms);
  if (phase_ == Phase::kRecycling) send_due_recycles(now_ms);
  send_due_warmups(now_ms);
  settle(now_ms);
}

void Core::advance_busy(int64_t now_ms) {
  if (recycle_) {
    bool drained = drain_answered_ || !registered_ || now_ms >= phase_deadline_ms_;
    if (drained) begin_recycling(now_ms);
    return;
  }
  // Drained by the operator: a condition that fails shows as what it is; otherwise busy until resume.
  auto unmet = missing(now_ms);
  if (unmet) return settle_unmet(*unmet, now_ms);
  if (!drained_) settle(now_ms);
}

void Core::settle(int64_t now_ms) {
  auto unmet = missing(now_ms);
  if (unmet) return settle_unmet(*unmet, now_ms);
  if (renewal_due_ && phase_ != Phase::kRecycling)
    return start_recycle(renewal_trigger_, renewal_reason_, options_.drain_limit_ms, now_ms);
  if (prewarm(now_ms)) return become_ready(now_ms);
  bool late = phase_deadline_ms_ != 0 && now_ms >= phase_deadline_ms_;
  if (phase_ != Phase::kReady && !late) return;
  // Ready with pairs of another instance, or pairs that do not come: not serving until they are there.
  recycle_.reset();
  enter(late ? Phase::kError : Phase::kInitializing, "the prewarmed pairs are being restarted", now_ms);
  if (!late) phase_deadline_ms_ = now_ms + options_.start_limit_ms;
  advertise(0, now_ms);
}

void Core::settle_unmet(const Missing& unmet, int64_t now_ms) {
  bool late = phase_deadline_ms_ != 0 && now_ms >= phase_deadline_ms_;
  if (phase_ == Phase::kRecycling && !late && unmet.kind == Kind::kWaiting) return;
  bool fault = unmet.kind != Kind::kWaiting || late;
  Phase next = fault ? Phase::kError : Phase::kInitializing;
  // An overdue start stays an error until something changes for the better.
  if (phase_ == Phase::kError && unmet.kind == Kind::kWaiting && reason_ == unmet.what) next = Phase::kError;
  if (next != phase_ || unmet.what != reason_) {
    if (phase_ == Phase::kRecycling) recycle_.reset();
    // A start that goes from one obstacle to the next has one deadline.
    int64_t deadline = phase_ == Phase::kInitializing ? phase_deadline_ms_ : now_ms + options_.start_limit_ms;
    enter(next, unmet.what, now_ms);
    if (next == Phase::kInitializing) phase_deadline_ms_ = deadline;
    advertise(0, now_ms);
  }
  if (phase_ == Phase::kError) plan_error_recycle(unmet, now_ms);
}

// Devices and the owner are not healed by a new runtime; a runtime at fault, or one that does not get ready, is.
void Core::plan_error_recycle(const Missing& unmet, int64_t now_ms) {
  bool runtime_unready = std::any_of(runtimes_.begin(), runtimes_.end(), [](const RuntimeFacts& r) {
    return r.state != Runtime::kUnreachable && (r.state != Runtime::kReady || r.instance == r.retired);
  });
  if (unmet.kind == Kind::kFault || !runtime_unready) {
    error_recycle_at_ms_ = 0;
  } else if (error_recycle_at_ms_ == 0) {
    int64_t backoff = options_.error_backoff_ms << std::min<uint32_t>(recycles_without_ready_, 16);
    error_recycle_at_ms_ = now_ms + std::min(backoff, options_.error_backoff_max_ms);
  } else if (now_ms >= error_recycle_at_ms_) {
    ++recycles_without_ready_;
    start_recycle(Trigger::kError, unmet.what, options_.error_drain_limit_ms, now_ms);
  }
}

bool Core::prewarm(int64_t now_ms) {
  if (prewarmed_for_ == serving_set()) return true;
  if (prewarm_op_ != 0 && now_ms < prewarm_deadline_ms_) return false;
  if (now_ms < prewarm_retry_at_ms_) return false;
  prewarm_op_ = next_op_++;
  prewarm_deadline_ms_ = now_ms + options_.prewarm_limit_ms + options_.answer_margin_ms;
  out_.emplace_back(std::in_place_type<RestartPrewarmed>, prewarm_op_);
  return false;
}

void Core::become_ready(int64_t now_ms) {
  if (recycle_) {
    ++recycle_count_;
    last_recycle_ms_ = now_ms - recycle_->started_ms;
    recycle_.reset();
    draw_next_recycle(now_ms);
  }
  recycles_without_ready_ = 0;
  error_recycle_at_ms_ = 0;
  if (drained_) {
    if (phase_ == Phase::kBusy) return;
    enter(Phase::kBusy, "drained by the operator", now_ms);
    return advertise(0, now_ms);
  }
  if (phase_ != Phase::kReady) {
    enter(Phase::kReady, "", now_ms);
    advertise(0, now_ms);
  } else if (now_ms >= refresh_at_ms_) {
    advertise(0, now_ms);
  }
}

void Core::start_recycle(Trigger trigger, std::string reason, int64_t drain_limit_ms, int64_t now_ms) {
  recycle_ = Recycle{trigger, std::move(reason), drain_limit_ms, now_ms};
  renewal_due_ = false;
  error_recycle_at_ms_ = 0;
  for (RuntimeFacts& runtime : runtimes_) {
    runtime.retired = runtime.instance;
    runtime.recycle_accepted = false;
    runtime.recycle_op = 0;
    runtime.retry_at_ms = 0;
  }
  drain_answered_ = false;
  enter(Phase::kBusy, recycle_->reason, now_ms);
  phase_deadline_ms_ = now_ms + drain_limit_ms + options_.answer_margin_ms;
  // Without cloudboardd there is nobody to wait for: its requests ended with it.
  if (!registered_) return begin_recycling(now_ms);
  advertise(drain_limit_ms, now_ms);
}

void Core::begin_recycling(int64_t now_ms) {
  enter(Phase::kRecycling, recycle_->reason, now_ms);
  phase_deadline_ms_ = now_ms + recycle_->drain_limit_ms + options_.start_limit_ms;
  advertise(0, now_ms);
  send_due_recycles(now_ms);
}

void Core::send_due_recycles(int64_t now_ms) {
  for (size_t i = 0; i < runtimes_.size(); ++i) {
    RuntimeFacts& runtime = runtimes_[i];
    bool present = runtime.state != Runtime::kUnreachable && runtime.instance == runtime.retired;
    if (!present || runtime.recycle_accepted || runtime.recycle_op != 0 || now_ms < runtime.retry_at_ms) continue;
    runtime.recycle_op = next_op_++;
    out_.emplace_back(std::in_place_type<SendRecycle>, runtime.recycle_op, i, trigger_name(recycle_->trigger),
                      recycle_->drain_limit_ms);
  }
}

// A runtime that needs its prefix cache warmed is told so once; it ends when it has, and a fresh one restores what it
// sealed.
void Core::send_due_warmups(int64_t now_ms) {
  for (size_t i = 0; i < runtimes_.size(); ++i) {
    RuntimeFacts& runtime = runtimes_[i];
    if (runtime.state != Runtime::kNeedsWarmup || runtime.instance == runtime.retired || runtime.warmup_op != 0)
      continue;
    if (runtime.warming == runtime.instance && now_ms < runtime.warmup_at_ms) continue;
    runtime.warming = runtime.instance;
    runtime.warmup_op = next_op_++;
    out_.emplace_back(std::in_place_type<SendWarmup>, runtime.warmup_op, i);
  }
}

void Core::enter(Phase phase, std::string reason, int64_t now_ms) {
  if (phase_ != phase) phase_since_ms_ = now_ms;
  phase_ = phase;
  reason_ = std::move(reason);
  phase_deadline_ms_ = 0;
}

void Core::advertise(int64_t wait_ms, int64_t now_ms) {
  refresh_at_ms_ = now_ms + options_.refresh_ms;
  if (!registered_) return;
  advertise_due_ = false;
  advertise_op_ = next_op_++;
  out_.emplace_back(std::in_place_type<Advertise>, advertise_op_, phase_, advertised_max_requests(), reason_, wait_ms);
}

int64_t Core::next_wake_ms() const {
  int64_t wake = phase_since_ms_ + kIdleTickMs;
  bool first = true;
  auto consider = [&](int64_t at) {
    if (at == 0) return;
    wake = first ? at : std::min(wake, at);
    first = false;
  };
  consider(phase_deadline_ms_);
  consider(next_recycle_at_ms_);
  if (phase_ == Phase::kError) consider(error_recycle_at_ms_);
  if (phase_ == Phase::kReady) consider(refresh_at_ms_);
  if (prewarm_op_ != 0) consider(prewarm_deadline_ms_);
  if (prewarm_op_ == 0 && phase_ != Phase::kReady) consider(prewarm_retry_at_ms_);
  if (gpu_ == Gpu::kUnknown && gpu_seen_) consider(gpu_lost_ms_ + options_.peer_grace_ms);
  if (owner_ != Owner::kReady && owner_seen_) consider(owner_lost_ms_ + options_.peer_grace_ms);
  for (const RuntimeFacts& runtime : runtimes_)
    if (runtime.state == Runtime::kNeedsWarmup && runtime.warmup_op == 0) consider(runtime.warmup_at_ms);
  if (phase_ == Phase::kRecycling)
    for (const RuntimeFacts& runtime : runtimes_)
      if (!runtime.recycle_accepted && runtime.recycle_op == 0) consider(runtime.retry_at_ms);
  return wake;
}

}  // namespace tie::controller
