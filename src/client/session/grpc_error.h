// A gRPC status as an Error of the product's one table. Private to this folder.
#pragma once
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include "base/result.h"

namespace tie::client {

// `context` has finished. The name in the trailing metadata `tie-error` decides; without it the status does, and
// UNAVAILABLE then means that `node` cannot be reached.
Error error_of(const grpc::Status& status, const grpc::ClientContext& context, const std::string& node);

}  // namespace tie::client
