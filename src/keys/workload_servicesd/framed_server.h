// A unix socket that takes framed requests: a bounded number of connections, a thread for each (they are few and mostly idle: the
// helpers of the prewarmed pool connect early). Threads: start() and stop() on one; `serve` runs on the connections' threads.
// Owns: the listener, the connections, their threads. Untrusted peers: a connection over the limit is closed at once.
#pragma once
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "os/unix_socket.h"

namespace tie::wsd {

class FramedServer {
 public:
  // Called when a request can be read; answers it and says whether the connection may send another.
  using Serve = std::function<bool(int socket)>;
  static Result<std::unique_ptr<FramedServer>> start(const std::string& path, size_t max_connections, Serve serve);
  ~FramedServer();
  void stop();  // closes every connection and waits for the requests in flight

 private:
  FramedServer(os::Fd listener, size_t max_connections, Serve serve);
  struct Connection {
    os::Fd socket;
  };
  void accept_loop();
  void serve_connection(std::list<Connection>::iterator connection);
  const os::Fd listener_;
  const size_t max_connections_;
  const Serve serve_;
  std::mutex mutex_;
  std::condition_variable empty_;
  std::list<Connection> connections_;
  bool stopping_ = false;
  std::thread acceptor_;
};

}  // namespace tie::wsd
