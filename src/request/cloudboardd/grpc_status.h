// How an Error of the table leaves the node over gRPC: its status, its sentence, its NAME in the trailing metadata
// `tie-error`.
#pragma once
#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include "base/result.h"

namespace tie::request::cloudboard {

inline grpc::Status to_status(grpc::ServerContextBase& context, const Error& error) {
  if (error.code == Code::kOk) return grpc::Status::OK;
  const ErrorInfo& info = error_info(error.code);
  context.AddTrailingMetadata("tie-error", info.name);
  return {static_cast<grpc::StatusCode>(info.grpc_status), error.message};
}

}  // namespace tie::request::cloudboard
