// The whole daemon as an object: event loop, node, two gRPC servers, the gate in front. main starts one; tests start it
// in their own process. Threads: its own loop thread and gRPC's.
#pragma once
#include <memory>
#include <string>

#include "request/cloudboardd/node.h"

namespace tie::request::cloudboard {

struct ServerConfig {
  NodeConfig node;
  std::string listen = "127.0.0.1:8443";
  std::string control_socket;
  size_t max_connections = 1000;
};

class Server {
 public:
  // Listens and answers when it returns.
  static Result<std::unique_ptr<Server>> start(const ServerConfig& config);
  virtual ~Server() = default;
  virtual uint16_t port() const = 0;
  // Lets nothing new in, waits for what is in flight, ends.
  virtual void stop(int64_t drain_ms) = 0;
};

}  // namespace tie::request::cloudboard
