#include "supervision/controllerd/controller_service.h"

#include <algorithm>

#include "supervision/controllerd/metrics.h"
#include "supervision/rpc/unix_grpc.h"

namespace tie::controller {
namespace {

constexpr int64_t kHeartbeatMs = 1'000;
constexpr int64_t kHandledMs = 2'000;
constexpr int64_t kLoadMs = 500;
constexpr int64_t kReadyWaitMs = 60'000;
constexpr int64_t kReloadMs = 10 * 60'000;

const char* gpu_name(Gpu health) {
  switch (health) {
    case Gpu::kUnknown:
      return "unknown";
    case Gpu::kHealthy:
      return "healthy";
    case Gpu::kDegraded:
      return "degraded";
    case Gpu::kUnavailable:
      return "unavailable";
  }
  return "unknown";
}

const char* owner_name(Owner state) {
  switch (state) {
    case Owner::kUnknown:
      return "unknown";
    case Owner::kLoading:
      return "loading";
    case Owner::kReady:
      return "ready";
    case Owner::kError:
      return "error";
  }
  return "unknown";
}

void add_component(v1::NodeStatus& out, std::string name, const char* state, std::string message, int64_t since_ms) {
  v1::ComponentStatus& component = *out.add_components();
  component.set_name(std::move(name));
  component.set_state(state);
  component.set_message(std::move(message));
  component.set_since_ms(static_cast<uint64_t>(std::max<int64_t>(since_ms, 0)));
}

void fill_outcomes(const RequestCounts& counts, v1::RequestOutcomes& out) {
  out.set_completed(counts.completed);
  out.set_refused_busy(counts.refused_busy);
  out.set_refused_key(counts.refused_key);
  out.set_refused_replay(counts.refused_replay);
  out.set_refused_request(counts.refused_request);
  out.set_failed(counts.failed);
  out.set_cancelled(counts.cancelled);
  out.set_cut(counts.cut);
}

}  // namespace

// What an operator reads is true when it is asked for, not as of cloudboardd's last report.
void ControllerService::fill_now(v1::NodeStatus& out) const {
  bool known = node_.refresh_load(kLoadMs);
  fill(node_.snapshot(), out);
  out.set_load_unknown(!known);
}

void ControllerService::fill(const Core& core, v1::NodeStatus& out) const {
  int64_t now = monotonic_ms();
  out.set_state(phase_name(core.phase()));
  out.set_reason(core.reason());
  out.set_state_since_ms(static_cast<uint64_t>(now - core.phase_since_ms()));
  const auto& probes = node_.options().probes;
  for (size_t i = 0; i < probes.size(); ++i) {
    RuntimeView runtime = core.runtime(i);
    add_component(out, "runtime/" + probes[i].model, runtime_name(runtime.state), runtime.message,
                  now - runtime.since_ms);
    if (!runtime.last_fault.empty()) {
      v1::ComponentStatus& component = *out.mutable_components()->rbegin();
      component.set_last_fault(runtime.last_fault);
      component.set_last_fault_ago_ms(static_cast<uint64_t>(std::max<int64_t>(now - runtime.last_fault_ms, 0)));
    }
    out.add_models(probes[i].model);
  }
  add_component(out, "model-owner", owner_name(core.owner()), core.owner_message(), now - core.owner_since_ms());
  add_component(out, "gpuhealth", gpu_name(core.gpu()), core.gpu_message(), now - core.gpu_since_ms());
  add_component(out, "cloudboard", core.registered() ? "registered" : "not registered", "",
                now - core.registered_since_ms());
  out.set_recycle_count(core.recycle_count());
  if (core.next_recycle_at_ms() != 0)
    out.set_next_recycle_in_ms(static_cast<uint64_t>(std::max<int64_t>(core.next_recycle_at_ms() - now, 0)));
  out.set_last_recycle_ms(static_cast<uint64_t>(core.last_recycle_ms()));
  out.set_in_flight(core.in_flight());
  fill_outcomes(core.request_counts(), *out.mutable_outcomes());
  out.set_max_requests(core.advertised_max_requests());
  out.set_drained_by_operator(core.drained_by_operator());
}

grpc::Status ControllerService::GetStatus(grpc::ServerContext*, const v1::NodeStatusRequest*, v1::NodeStatus* reply) {
  fill_now(*reply);
  return grpc::Status::OK;
}

grpc::Status ControllerService::GetMetrics(grpc::ServerContext*, const v1::NodeStatusRequest*, v1::NodeMetrics* reply) {
  v1::NodeStatus status;
  fill_now(status);
  reply->set_text(metrics_text(status));
  return grpc::Status::OK;
}

grpc::Status ControllerService::WatchStatus(grpc::ServerContext* context, const v1::NodeStatusRequest*,
                                            grpc::ServerWriter<v1::NodeStatus>* writer) {
  std::string sent;
  int64_t sent_ms = 0;
  uint64_t version = 0;
  while (!context->IsCancelled()) {
    auto [core, now_version] = node_.snapshot_after(version, Deadline::in_ms(100));
    version = now_version;
    std::string shown = std::string(phase_name(core.phase())) + core.reason();
    for (size_t i = 0; i < node_.options().probes.size(); ++i)
      shown += runtime_name(core.runtime(i).state) + core.runtime(i).instance;
    if (shown == sent && monotonic_ms() - sent_ms < kHeartbeatMs) continue;
    v1::NodeStatus message;
    fill(core, message);
    if (!writer->Write(message)) break;
    sent = shown;
    sent_ms = monotonic_ms();
  }
  return grpc::Status::OK;
}

grpc::Status ControllerService::recycle(grpc::ServerContext* context, RecycleWanted wanted, v1::NodeStatus* reply) {
  int64_t drain_ms = wanted.drain_limit_ms != 0 ? wanted.drain_limit_ms : node_.options().core.drain_limit_ms;
  Deadline deadline = Deadline::in_ms(drain_ms + node_.options().core.start_limit_ms + kHandledMs);
  node_.post_and_wait(std::move(wanted), Deadline::in_ms(kHandledMs));
  bool over = node_.wait([&](const Core& core) { return !core.recycling() || context->IsCancelled(); }, deadline);
  fill_now(*reply);
  Core core = node_.snapshot();
  if (!over || core.recycling())
    return rpc::to_status({Code::kDeadline, "the recycle goes on; `tie node status` shows how far it is"}, context);
  if (core.phase() == Phase::kError || core.phase() == Phase::kInitializing)
    return rpc::to_status({Code::kNotReady, core.reason()}, context);
  return grpc::Status::OK;
}

grpc::Status ControllerService::Recycle(grpc::ServerContext* context, const v1::NodeRecycleRequest* request,
                                        v1::NodeStatus* reply) {
  std::string reason = request->reason().empty() ? "asked for by the operator" : request->reason().substr(0, 200);
  return recycle(context, {Trigger::kOperator, reason, request->drain_limit_ms()}, reply);
}

// The owner loads what changed; if it then hands out something else, the core recycles by itself, and the call returns
// when that is over.
grpc::Status ControllerService::Reload(grpc::ServerContext* context, const v1::NodeReloadRequest*,
                                       v1::NodeStatus* reply) {
  auto handed_out = ask_reload(node_.options().owner_socket, kReloadMs);
  if (!handed_out) {
    fill_now(*reply);
    return rpc::to_status({Code::kNotReady, "the model owner does not answer"}, context);
  }
  // Its next report tells the core.
  std::string before = node_.snapshot().owner_instance();
  (void)node_.wait(
      [&](const Core& core) { return core.owner_instance() != before || core.recycling() || context->IsCancelled(); },
      Deadline::in_ms(node_.options().timing.owner_poll_ms * 2));
  Deadline deadline = Deadline::in_ms(node_.options().core.drain_limit_ms + node_.options().core.start_limit_ms);
  bool over = node_.wait([&](const Core& core) { return !core.recycling() || context->IsCancelled(); }, deadline);
  fill_now(*reply);
  Core core = node_.snapshot();
  if (!over)
    return rpc::to_status({Code::kDeadline, "the recycle goes on; `tie node status` shows how far it is"}, context);
  // The old version goes on serving, and who asked for the new one must hear it.
  if (!handed_out->refused.empty()) return rpc::to_status({Code::kFailedPrecondition, handed_out->refused}, context);
  for (const std::string& model : handed_out->models) {
    const auto& probes = node_.options().probes;
    bool is_served = std::any_of(probes.begin(), probes.end(), [&](const ProbeTarget& p) { return p.model == model; });
    if (!is_served) reply->add_unserved_models(model);
  }
  return grpc::Status::OK;
}

grpc::Status ControllerService::Drain(grpc::ServerContext* context, const v1::NodeDrainRequest* request,
                                      v1::NodeStatus* reply) {
  uint32_t wait_ms =
      request->wait_ms() != 0 ? request->wait_ms() : static_cast<uint32_t>(node_.options().core.drain_limit_ms);
  node_.post_and_wait(DrainWanted{wait_ms}, Deadline::in_ms(kHandledMs));
  (void)node_.wait(
      [&](const Core& core) { return core.drain_answered() || core.phase() != Phase::kBusy || context->IsCancelled(); },
      Deadline::in_ms(int64_t{wait_ms} + kHandledMs));
  fill_now(*reply);
  Core core = node_.snapshot();
  if (!core.drained_by_operator())
    return rpc::to_status({Code::kFailedPrecondition,
                           "a `tie node resume` ended this drain: the node takes requests; `tie node drain` again "
                           "takes it out of service"},
                          context);
  if (core.in_flight() > 0)
    return rpc::to_status(
        {Code::kDeadline, std::to_string(core.in_flight()) + " requests are still in flight after " +
                              std::to_string(wait_ms / 1000) +
                              " s; the node takes no new ones. `tie node drain` waits on, `tie node resume` takes "
                              "requests again"},
        context);
  return grpc::Status::OK;
}

grpc::Status ControllerService::Resume(grpc::ServerContext* context, const v1::NodeResumeRequest*,
                                       v1::NodeStatus* reply) {
  node_.post_and_wait(ResumeWanted{}, Deadline::in_ms(kHandledMs));
  (void)node_.wait(
      [&](const Core& core) {
        return core.phase() == Phase::kReady || core.drained_by_operator() || context->IsCancelled();
      },
      Deadline::in_ms(kReadyWaitMs));
  fill_now(*reply);
  Core core = node_.snapshot();
  if (core.drained_by_operator())
    return rpc::to_status({Code::kFailedPrecondition,
                           "a `tie node drain` that came after this resume keeps the node out of service; `tie node "
                           "resume` again ends it"},
                          context);
  if (core.phase() != Phase::kReady)
    return rpc::to_status({Code::kNotReady, "takes no requests after " + std::to_string(kReadyWaitMs / 1000) +
                                                " s: " + core.reason() + "; `tie node status` shows the parts"},
                          context);
  return grpc::Status::OK;
}

}  // namespace tie::controller
