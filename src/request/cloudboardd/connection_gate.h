// The TCP listener in front of gRPC: accepts up to a number of connections and hands them on; one more is closed at
// once. gRPC's own listener has no such limit and dies for good when descriptors run out. Belongs to the event loop's
// thread.
#pragma once
#include <functional>
#include <string>
#include <unordered_map>

#include "request/cloudboardd/event_loop.h"

namespace tie::request::cloudboard {

class ConnectionGate {
 public:
  using Accepted = std::function<void(int listener, os::Fd connection)>;

  // address: "127.0.0.1:8443" or "[::1]:8443"; port 0 = any free one.
  static Result<std::unique_ptr<ConnectionGate>> listen(EventLoop& loop, const std::string& address,
                                                        size_t max_connections);

  // Begins to accept. `accepted` gets a non-blocking connection.
  Result<void> start(Accepted accepted);
  void stop();
  uint16_t port() const { return port_; }
  size_t connections() const { return open_.size(); }

 private:
  ConnectionGate(EventLoop& loop, os::Fd listener, uint16_t port, size_t max)
      : loop_(loop), listener_(std::move(listener)), port_(port), max_(max) {}
  void on_readable();
  void admit(os::Fd connection);

  EventLoop& loop_;
  os::Fd listener_;
  uint16_t port_;
  size_t max_;
  Accepted accepted_;
  EventLoop::Id watch_id_ = 0;
  // A second descriptor of each connection: its hang-up shows that gRPC, which owns the first, is done with it.
  std::unordered_map<EventLoop::Id, os::Fd> open_;
};

}  // namespace tie::request::cloudboard
