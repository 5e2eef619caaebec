// The gRPC faces of the probe: StatusProbe (proto/probe.proto) and grpc.health.v1, SERVING exactly while the state is
// ready. WatchStatus sends at each change and at least every kHeartbeatMs, so that a watcher can tell a hung container.
#pragma once
#include "health.grpc.pb.h"
#include "probe.grpc.pb.h"
#include "supervision/status_probe/probe.h"

namespace tie::probe {

inline constexpr int64_t kHeartbeatMs = 1'000;

class ProbeService final : public v1::StatusProbe::Service {
 public:
  explicit ProbeService(Probe& probe) : probe_(probe) {}
  grpc::Status GetStatus(grpc::ServerContext*, const v1::ProbeStatusRequest*, v1::ProbeStatus* reply) override;
  grpc::Status WatchStatus(grpc::ServerContext* context, const v1::ProbeStatusRequest*,
                           grpc::ServerWriter<v1::ProbeStatus>* writer) override;
  grpc::Status Recycle(grpc::ServerContext*, const v1::RecycleRequest* request, v1::RecycleReply* reply) override;
  grpc::Status Warmup(grpc::ServerContext* context, const v1::WarmupRequest*, v1::WarmupReply* reply) override;
  grpc::Status Canary(grpc::ServerContext*, const v1::CanaryRequest*, v1::CanaryReply* reply) override;

 private:
  Probe& probe_;
};

class ProbeHealthService final : public ::grpc::health::v1::Health::Service {
 public:
  explicit ProbeHealthService(const Probe& probe) : probe_(probe) {}
  grpc::Status Check(grpc::ServerContext*, const ::grpc::health::v1::HealthCheckRequest*,
                     ::grpc::health::v1::HealthCheckResponse* reply) override;

 private:
  const Probe& probe_;
};

}  // namespace tie::probe
