// The calls that answer at once: liveness, readiness, metadata, configuration. Every administrative call of Triton's interface (repository,
// statistics, shared memory, trace and log settings) is left at gRPC's UNIMPLEMENTED: a compromised app cannot change the runtime.
// Thread-safe.
#pragma once
#include <atomic>
#include <string>

#include "grpc_service.grpc.pb.h"

namespace tie::runtime_host {

class UnaryService : public inference::GRPCInferenceService::Service {
 public:
  void set_model(std::string model) { model_ = std::move(model); }  // before the server starts
  void set_ready(bool ready) { ready_ = ready; }

  grpc::Status ServerLive(grpc::ServerContext*, const inference::ServerLiveRequest*, inference::ServerLiveResponse* reply) override;
  grpc::Status ServerReady(grpc::ServerContext*, const inference::ServerReadyRequest*, inference::ServerReadyResponse* reply) override;
  grpc::Status ModelReady(grpc::ServerContext*, const inference::ModelReadyRequest* request, inference::ModelReadyResponse* reply) override;
  grpc::Status ServerMetadata(grpc::ServerContext*, const inference::ServerMetadataRequest*, inference::ServerMetadataResponse* reply) override;
  grpc::Status ModelMetadata(grpc::ServerContext*, const inference::ModelMetadataRequest* request, inference::ModelMetadataResponse* reply) override;
  grpc::Status ModelConfig(grpc::ServerContext*, const inference::ModelConfigRequest* request, inference::ModelConfigResponse* reply) override;
  grpc::Status ModelInfer(grpc::ServerContext*, const inference::ModelInferRequest*, inference::ModelInferResponse*) override;

 private:
  grpc::Status known(const std::string& name, const std::string& version) const;

  std::string model_;
  std::atomic<bool> ready_{false};
};

}  // namespace tie::runtime_host
