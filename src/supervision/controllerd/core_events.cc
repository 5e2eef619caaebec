// What the core takes from each event: facts only. What follows from them is decided in core.cc.
#include <algorithm>

#include "supervision/controllerd/core.h"

namespace tie::controller {

void Core::hear(const GpuReport& e, int64_t now_ms) {
  if (e.health != gpu_) gpu_since_ms_ = now_ms;
  if (e.health == Gpu::kUnknown && gpu_ != Gpu::kUnknown) gpu_lost_ms_ = now_ms;
  // A runtime that lived through a device fault is not trusted to have survived it.
  if (e.health == Gpu::kUnavailable && any_reachable()) {
    renewal_due_ = true;
    renewal_trigger_ = Trigger::kError;
    renewal_reason_ = "the devices were unavailable";
  }
  // Silence after a bad verdict does not make it a good one.
  if (e.health == Gpu::kUnknown && gpu_ != Gpu::kHealthy && gpu_ != Gpu::kUnknown) gpu_seen_ = false;
  gpu_ = e.health;
  gpu_message_ = e.message;
  if (e.health != Gpu::kUnknown) verdict_of_gpus_ = e.of_gpus;
  gpu_seen_ = gpu_seen_ || e.health == Gpu::kHealthy;
}

void Core::hear(const OwnerReport& e, int64_t now_ms) {
  if (e.state != owner_) owner_since_ms_ = now_ms;
  bool was_ready = owner_ == Owner::kReady;
  if (was_ready && e.state != Owner::kReady) owner_lost_ms_ = now_ms;
  if (!e.instance.empty() && e.instance != owner_instance_) {
    // Runtimes that attached to the earlier owner keep its memory alive beside the new one's.
    if (!owner_instance_.empty() && any_reachable()) {
      renewal_due_ = true;
      renewal_trigger_ = Trigger::kAssets;
      renewal_reason_ = "the model owner hands out other memory (a restart or an update)";
    }
    owner_instance_ = e.instance;
  }
  if (e.state == Owner::kReady) model_on_gpu_ = e.on_gpu;
  owner_ = e.state;
  owner_message_ = e.message;
  owner_seen_ = owner_seen_ || e.state == Owner::kReady;
}

void Core::hear(const RuntimeReport& e, int64_t now_ms) {
  if (e.index >= runtimes_.size()) return;
  RuntimeFacts& runtime = runtimes_[e.index];
  if (runtime.state != e.state || (!e.instance.empty() && e.instance != runtime.instance)) runtime.since_ms = now_ms;
  bool retired = !runtime.retired.empty() && e.instance == runtime.retired;
  if (e.state == Runtime::kError && !retired && (runtime.state != e.state || runtime.message != e.message)) {
    runtime.last_fault = e.message;
    runtime.last_fault_ms = now_ms;
  }
  runtime.state = e.state;
  runtime.message = e.message;
  if (!e.instance.empty()) runtime.instance = e.instance;
}

void Core::hear(const Registration& e, int64_t now_ms) {
  advertise_due_ = false;
  if (e.registered) {
    ++registration_number_;
    advertise_due_ = true;
  }
  if (registered_ != e.registered) registered_since_ms_ = now_ms;
  registered_ = e.registered;
}

void Core::hear(const Advertised& e, int64_t) {
  if (e.op != advertise_op_) return;
  if (e.ok) {
    in_flight_ = e.in_flight;
    counts_ = e.counts;
  }
  if (phase_ == Phase::kBusy) drain_answered_ = true;
}

void Core::hear(const LoadReport& e, int64_t) {
  in_flight_ = e.in_flight;
  counts_ = e.counts;
}

void Core::hear(const RecycleAnswered& e, int64_t now_ms) {
  if (e.index >= runtimes_.size() || runtimes_[e.index].recycle_op != e.op) return;
  RuntimeFacts& runtime = runtimes_[e.index];
  runtime.recycle_op = 0;
  runtime.recycle_accepted = e.ok;
  runtime.retry_at_ms = now_ms + options_.retry_ms;
}

void Core::hear(const WarmupAnswered& e, int64_t now_ms) {
  if (e.index >= runtimes_.size() || runtimes_[e.index].warmup_op != e.op) return;
  RuntimeFacts& runtime = runtimes_[e.index];
  runtime.warmup_op = 0;
  runtime.warmup_at_ms = now_ms + (e.ok ? options_.warmup_limit_ms : options_.retry_ms);
  if (e.ok && phase_deadline_ms_ != 0)
    phase_deadline_ms_ = std::max(phase_deadline_ms_, now_ms + options_.warmup_limit_ms);
}

void Core::hear(const PrewarmedRestarted& e, int64_t now_ms) {
  if (e.op != prewarm_op_) return;
  prewarm_op_ = 0;
  if (e.ok) {
    prewarmed_for_ = serving_set();
  } else {
    prewarm_retry_at_ms_ = now_ms + options_.retry_ms;
  }
}

void Core::hear(const RecycleWanted& e, int64_t now_ms) {
  if (recycle_) return;  // joins the one in progress
  start_recycle(e.trigger, e.reason, e.drain_limit_ms == 0 ? options_.drain_limit_ms : e.drain_limit_ms, now_ms);
}

void Core::hear(const DrainWanted& e, int64_t now_ms) {
  drained_ = true;
  bool drained_already = phase_ == Phase::kBusy && !recycle_;
  if (phase_ != Phase::kReady && !drained_already) return;
  drain_answered_ = false;
  enter(Phase::kBusy, "drained by the operator", now_ms);
  advertise(e.wait_ms, now_ms);
}

void Core::hear(const ResumeWanted&, int64_t) {
  drained_ = false;
}

void Core::hear(const Tick&, int64_t) {}

}  // namespace tie::controller
