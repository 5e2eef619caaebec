#include "supervision/gpuhealthd/health_service.h"

#include <algorithm>

namespace tie::gpuhealth {
namespace {

void fill(const NodeVerdict& verdict, v1::GpuVerdict& out) {
  out.set_health(static_cast<v1::DeviceHealth>(verdict.health));
  out.set_provider(verdict.provider);
  out.set_age_ms(static_cast<uint64_t>(verdict.age_ms));
  for (const DeviceVerdict& device : verdict.devices) {
    v1::DeviceState& state = *out.add_devices();
    state.set_name(device.name);
    state.set_health(static_cast<v1::DeviceHealth>(device.health));
    state.set_reason(device.reason);
    state.set_temperature_c(device.temperature_c);
    state.set_memory_used_bytes(device.memory_used_bytes);
    state.set_memory_total_bytes(device.memory_total_bytes);
  }
}

}  // namespace

grpc::Status HealthService::GetVerdict(grpc::ServerContext*, const v1::GpuVerdictRequest*, v1::GpuVerdict* reply) {
  fill(poller_.verdict(), *reply);
  return grpc::Status::OK;
}

grpc::Status HealthService::WatchVerdict(grpc::ServerContext* context, const v1::GpuVerdictRequest*,
                                         grpc::ServerWriter<v1::GpuVerdict>* writer) {
  NodeVerdict seen = poller_.verdict();
  int64_t sent_ms = 0;
  while (!context->IsCancelled()) {
    NodeVerdict now = sent_ms == 0 ? seen : poller_.wait_change(seen, Deadline::in_ms(100));
    if (!same_verdict(now, seen) || monotonic_ms() - sent_ms >= kHeartbeatMs) {
      v1::GpuVerdict message;
      fill(now, message);
      if (!writer->Write(message)) break;
      sent_ms = monotonic_ms();
    }
    seen = std::move(now);
  }
  return grpc::Status::OK;
}

}  // namespace tie::gpuhealth
