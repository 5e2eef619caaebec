// A unix socket that takes framed requests: a bounded number of connections, a thread for each (they are few and mostly
// idle: the helpers of the prewarmed pool connect early). Threads: start() and stop() on one; `serve` runs on the
// connections' threads. Owns: the listener, the connections, their threads. Untrusted peers: a connection over the
// limit, or of another user than the one this socket is for (where users differ: systemd), is closed at once.
#pragma once
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "os/unix_socket.h"

namespace tie::keys {

class FramedServer {
 public:
  // Called when a request can be read; answers it and says whether the connection may send another.
  using Serve = std::function<bool(int socket)>;
  struct Options {
    size_t max_connections = 16;
    std::optional<uint32_t> peer_uid;  // nullopt: whoever can reach the socket
  };
  static Result<std::unique_ptr<FramedServer>> start(const std::string& path, Options options, Serve serve);
  ~FramedServer();
  void stop();  // closes every connection and waits for the requests in flight

 private:
  FramedServer(os::Fd listener, Options options, Serve serve);
  bool welcome(int socket) const;
  struct Connection {
    os::Fd socket;
  };
  void accept_loop();
  void serve_connection(std::list<Connection>::iterator connection);
  const os::Fd listener_;
  const Options options_;
  const Serve serve_;
  std::mutex mutex_;
  std::condition_variable empty_;
  std::list<Connection> connections_;
  bool stopping_ = false;
  std::thread acceptor_;
};

}  // namespace tie::keys
