// The gRPC face of gpuhealthd (proto/gpuhealth.proto). WatchVerdict sends at each change and at least every
// kHeartbeatMs, so that a watcher can tell a hung daemon.
#pragma once
#include "gpuhealth.grpc.pb.h"
#include "supervision/gpuhealthd/poller.h"

namespace tie::gpuhealth {

inline constexpr int64_t kHeartbeatMs = 1'000;

class HealthService final : public v1::GpuHealth::Service {
 public:
  explicit HealthService(const Poller& poller) : poller_(poller) {}
  grpc::Status GetVerdict(grpc::ServerContext*, const v1::GpuVerdictRequest*, v1::GpuVerdict* reply) override;
  grpc::Status WatchVerdict(grpc::ServerContext* context, const v1::GpuVerdictRequest*,
                            grpc::ServerWriter<v1::GpuVerdict>* writer) override;

 private:
  const Poller& poller_;
};

}  // namespace tie::gpuhealth
