// A gRPC channel on a unix socket that finds its peer again by itself, soon after the peer was restarted: the daemon's two peers come
// and go in any order. Threads: any.
#pragma once
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

namespace tie::wsd {

inline std::shared_ptr<grpc::Channel> unix_channel(const std::string& path) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetMaxReceiveMessageSize(4 << 20);
  return grpc::CreateCustomChannel("unix:" + path, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace tie::wsd
