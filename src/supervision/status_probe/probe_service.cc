#include "supervision/status_probe/probe_service.h"

#include "supervision/rpc/unix_grpc.h"

namespace tie::probe {
namespace {

void fill(const Status& status, const std::string& model, v1::ProbeStatus& out) {
  out.set_state(static_cast<v1::ProbeStatus::State>(status.state));
  out.set_message(status.message);
  out.set_instance_id(status.instance_id);
  out.set_uptime_ms(static_cast<uint64_t>(monotonic_ms() - status.started_ms));
  out.set_canary_ms(static_cast<uint64_t>(status.canary_ms));
  out.set_model(model);
}

}  // namespace

grpc::Status ProbeService::GetStatus(grpc::ServerContext*, const v1::ProbeStatusRequest*, v1::ProbeStatus* reply) {
  fill(probe_.status(), probe_.model(), *reply);
  return grpc::Status::OK;
}

grpc::Status ProbeService::WatchStatus(grpc::ServerContext* context, const v1::ProbeStatusRequest*,
                                       grpc::ServerWriter<v1::ProbeStatus>* writer) {
  uint64_t sent_version = 0;
  int64_t sent_ms = 0;
  while (!context->IsCancelled()) {
    // Short pieces, so that a cancelled watch gives its thread back soon.
    Status status = probe_.wait_change(sent_version, Deadline::in_ms(100));
    if (status.version == sent_version && probe_.leaving()) break;
    if (status.version == sent_version && monotonic_ms() - sent_ms < kHeartbeatMs) continue;
    v1::ProbeStatus message;
    fill(status, probe_.model(), message);
    if (!writer->Write(message)) break;
    sent_version = status.version;
    sent_ms = monotonic_ms();
  }
  return grpc::Status::OK;
}

grpc::Status ProbeService::Recycle(grpc::ServerContext*, const v1::RecycleRequest* request, v1::RecycleReply* reply) {
  reply->set_instance_id(probe_.request_recycle(request->drain_limit_ms()));
  return grpc::Status::OK;
}

grpc::Status ProbeService::Warmup(grpc::ServerContext* context, const v1::WarmupRequest*, v1::WarmupReply* reply) {
  auto instance = probe_.request_warmup();
  if (!instance) return rpc::to_status(instance.error(), context);
  reply->set_instance_id(*instance);
  return grpc::Status::OK;
}

grpc::Status ProbeService::Canary(grpc::ServerContext*, const v1::CanaryRequest*, v1::CanaryReply* reply) {
  auto outcome = probe_.canary_now();
  reply->set_passed(outcome.has_value());
  if (outcome) {
    reply->set_duration_ms(static_cast<uint64_t>(*outcome));
  } else {
    reply->set_message(outcome.error().message);
  }
  return grpc::Status::OK;
}

grpc::Status ProbeHealthService::Check(grpc::ServerContext*, const ::grpc::health::v1::HealthCheckRequest*,
                                       ::grpc::health::v1::HealthCheckResponse* reply) {
  using Response = ::grpc::health::v1::HealthCheckResponse;
  reply->set_status(probe_.status().state == State::kReady ? Response::SERVING : Response::NOT_SERVING);
  return grpc::Status::OK;
}

}  // namespace tie::probe
