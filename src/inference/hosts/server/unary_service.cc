#include "inference/hosts/server/unary_service.h"

#include <fmt/core.h>

#include "inference/hosts/server/model_description.h"

namespace tie::runtime_host {

using grpc::ServerContext;
using grpc::Status;

Status UnaryService::known(const std::string& name, const std::string& version) const {
  if (name == model_ && (version.empty() || version == "1")) return Status::OK;
  return {grpc::StatusCode::NOT_FOUND, fmt::format("MODEL_NOT_FOUND: this runtime serves model '{}' version 1 only", model_)};
}

Status UnaryService::ServerLive(ServerContext*, const inference::ServerLiveRequest*, inference::ServerLiveResponse* reply) {
  reply->set_live(true);
  return Status::OK;
}

Status UnaryService::ServerReady(ServerContext*, const inference::ServerReadyRequest*, inference::ServerReadyResponse* reply) {
  reply->set_ready(ready_);
  return Status::OK;
}

Status UnaryService::ModelReady(ServerContext*, const inference::ModelReadyRequest* request, inference::ModelReadyResponse* reply) {
  reply->set_ready(ready_ && known(request->name(), request->version()).ok());
  return Status::OK;
}

Status UnaryService::ServerMetadata(ServerContext*, const inference::ServerMetadataRequest*, inference::ServerMetadataResponse* reply) {
  reply->set_name("tie-afm-runtime");
  reply->set_version("1");
  return Status::OK;
}

Status UnaryService::ModelMetadata(ServerContext*, const inference::ModelMetadataRequest* request, inference::ModelMetadataResponse* reply) {
  if (Status s = known(request->name(), request->version()); !s.ok()) return s;
  *reply = model_metadata(model_);
  return Status::OK;
}

Status UnaryService::ModelConfig(ServerContext*, const inference::ModelConfigRequest* request, inference::ModelConfigResponse* reply) {
  if (Status s = known(request->name(), request->version()); !s.ok()) return s;
  *reply->mutable_config() = model_config(model_);
  return Status::OK;
}

Status UnaryService::ModelInfer(ServerContext*, const inference::ModelInferRequest*, inference::ModelInferResponse*) {
  return {grpc::StatusCode::UNIMPLEMENTED, "UNSUPPORTED_FEATURE: the model answers with many responses to one request; use ModelStreamInfer"};
}

}  // namespace tie::runtime_host
