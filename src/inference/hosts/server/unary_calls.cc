#include "inference/hosts/server/unary_calls.h"

#include <fmt/core.h>

#include "grpc_service.pb.h"
#include "health.pb.h"
#include "inference/hosts/server/message_bytes.h"
#include "inference/hosts/server/model_description.h"

namespace tie::runtime_host {
namespace {

using grpc::Status;
using Answer = UnaryCalls::Answer;
const std::string kInference = "/inference.GRPCInferenceService/";

// Parses, lets `fill` write the reply, serializes.
template <typename Request, typename Reply, typename Fill>
Answer with(grpc::ByteBuffer& bytes, Fill fill) {
  Request request;
  if (!parse_and_wipe(bytes, request))
    return {{grpc::StatusCode::INVALID_ARGUMENT, "BAD_REQUEST: the message is not a request of this call"}, {}};
  Reply reply;
  Answer out{fill(request, reply), {}};
  if (out.status.ok()) out.reply = to_byte_buffer(reply);
  return out;
}

}  // namespace

Status UnaryCalls::known(const std::string& name, const std::string& version) const {
  if (name == model_ && (version.empty() || version == "1")) return Status::OK;
  return {grpc::StatusCode::NOT_FOUND,
          fmt::format("MODEL_NOT_FOUND: this runtime serves model '{}' version 1 only", model_)};
}

Answer UnaryCalls::answer(const std::string& method, grpc::ByteBuffer& request) const {
  using namespace inference;
  using Health = ::grpc::health::v1::HealthCheckResponse;
  if (method == "/grpc.health.v1.Health/Check") {
    return with<::grpc::health::v1::HealthCheckRequest, Health>(request, [&](auto& q, auto& a) {
      if (!q.service().empty() && q.service() != "inference.GRPCInferenceService")
        return Status(grpc::StatusCode::NOT_FOUND, "NOT_FOUND: no such service");
      a.set_status(ready_ ? Health::SERVING : Health::NOT_SERVING);
      return Status::OK;
    });
  }
  auto is = [&](const char* name) {
    return method.starts_with(kInference) && method.compare(kInference.size(), std::string::npos, name) == 0;
  };
  if (is("ServerLive"))
    return with<ServerLiveRequest, ServerLiveResponse>(request,
                                                       [](auto&, auto& a) { return a.set_live(true), Status::OK; });
  if (is("ServerReady"))
    return with<ServerReadyRequest, ServerReadyResponse>(
        request, [&](auto&, auto& a) { return a.set_ready(ready_), Status::OK; });
  if (is("ModelReady"))
    return with<ModelReadyRequest, ModelReadyResponse>(request, [&](auto& q, auto& a) {
      return a.set_ready(ready_ && known(q.name(), q.version()).ok()), Status::OK;
    });
  if (is("ServerMetadata"))
    return with<ServerMetadataRequest, ServerMetadataResponse>(
        request, [](auto&, auto& a) { return a.set_name("tie-afm-runtime"), a.set_version("1"), Status::OK; });
  if (is("ModelMetadata"))
    return with<ModelMetadataRequest, ModelMetadataResponse>(
        request, [&](auto& q, auto& a) { return a = model_metadata(model_), known(q.name(), q.version()); });
  if (is("ModelConfig"))
    return with<ModelConfigRequest, ModelConfigResponse>(request, [&](auto& q, auto& a) {
      return *a.mutable_config() = model_config(model_), known(q.name(), q.version());
    });
  if (is("ModelInfer"))
    return {{grpc::StatusCode::UNIMPLEMENTED,
             "UNSUPPORTED_FEATURE: the model answers with many responses to one request; use ModelStreamInfer"},
            {}};
  return {{grpc::StatusCode::UNIMPLEMENTED, "UNSUPPORTED_FEATURE: this runtime does not serve that call"}, {}};
}

}  // namespace tie::runtime_host
