// One InvokeWorkload call on gRPC's callback interface: passes messages between gRPC's threads and the event loop.
#pragma once
#include <grpcpp/support/server_callback.h>

#include "request/cloudboardd/node.h"

namespace tie::request::cloudboard {

// Admission happens in here, before anything else. The object deletes itself when gRPC and the request are done with
// it.
grpc::ServerBidiReactor<v1::InvokeRequest, v1::InvokeResponse>* serve_invoke(EventLoop& loop, Node& node,
                                                                             grpc::CallbackServerContext* context);

}  // namespace tie::request::cloudboard
