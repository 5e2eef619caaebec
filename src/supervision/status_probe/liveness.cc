#include "supervision/status_probe/liveness.h"

#include "base/clock.h"
#include "grpc_service.grpc.pb.h"
#include "supervision/rpc/unix_grpc.h"

namespace tie::probe {

bool Liveness::answers(int64_t deadline_ms) {
  if (channel_ == nullptr) {
    auto connected = rpc::connect(socket_, Deadline::in_ms(connect_ms_));
    if (!connected) return true;
    channel_ = std::move(*connected);
  }
  grpc::ClientContext context;
  context.set_deadline(rpc::call_deadline(deadline_ms));
  inference::ServerLiveResponse reply;
  grpc::Status status = inference::GRPCInferenceService::NewStub(channel_)->ServerLive(&context, {}, &reply);
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) channel_.reset();
  return status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED;
}

}  // namespace tie::probe
