// A gRPC channel on a unix socket that finds its peer again by itself, soon after the peer was restarted: this daemon's
// two peers come and go in any order. It also counts how often the connection was lost, since a peer that answers again
// may be a new process that knows nothing. Threads: any; one watching thread of its own. Owns: the channel and the
// thread.
#pragma once
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

namespace tie::wsd {

class UnixChannel {
 public:
  explicit UnixChannel(const std::string& path);
  ~UnixChannel();
  std::shared_ptr<grpc::Channel> channel() const { return channel_; }
  bool up() const { return channel_->GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_READY; }
  // Rises each time the connection is gained or lost. A loss shorter than a poll is counted too.
  uint64_t changes() const { return changes_; }

 private:
  void watch();
  const std::shared_ptr<grpc::Channel> channel_;
  std::atomic<uint64_t> changes_ = 0;
  std::atomic<bool> stopping_ = false;
  std::thread watcher_;
};

}  // namespace tie::wsd
