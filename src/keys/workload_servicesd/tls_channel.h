// The connection to a key service on another host: made again whenever it ends, with back-off; a gRPC channel lives as
// long as one connection. Threads: channel() and changes() from any; one connecting thread of its own. Owns: the TLS
// context.
#pragma once
#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "keys/tls_link/tls_link.h"

namespace tie::wsd {

class TlsChannel {
 public:
  TlsChannel(std::string address, keys::TlsContext tls);
  ~TlsChannel();
  std::shared_ptr<grpc::Channel> channel() const;  // nullptr while there is no connection
  uint64_t changes() const;                        // rises when a connection is gained or lost

 private:
  // Shared with the link's pumping thread, which may outlive this object.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::shared_ptr<grpc::Channel> channel;
    uint64_t changes = 0;
    bool stopping = false;
  };
  void keep_connected();
  Result<void> connect_once();
  const std::string address_;
  const keys::TlsContext tls_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread keeper_;
};

}  // namespace tie::wsd
