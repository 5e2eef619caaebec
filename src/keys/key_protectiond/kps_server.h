// Where key_protectiond listens: a unix socket (the peer's user is checked where users differ) and, for a key service
// on another host, TCP under mutual TLS. Connections are accepted here and handed to gRPC only once the peer is known.
// Threads: start() and stop() on one; an accepting thread for each listener. Limits: kMaxHandshakes at once, each
// kHandshakeMs.
#pragma once
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "keys/tls_link/tls_link.h"

namespace grpc {
class Server;
class Service;
}  // namespace grpc

namespace tie::kps {

struct ListenOptions {
  std::string socket;                    // empty: none
  std::optional<uint32_t> peer_uid;      // nullopt: whoever can reach the socket
  std::string tcp_address;               // HOST:PORT; empty: none
  std::optional<keys::TlsIdentity> tls;  // required with tcp_address
};

class KpsServer {
 public:
  static Result<std::unique_ptr<KpsServer>> start(const ListenOptions& options, grpc::Service& service);
  ~KpsServer();
  void stop(Deadline deadline);

 private:
  explicit KpsServer(std::optional<uint32_t> peer_uid) : peer_uid_(peer_uid) {}
  void accept_unix_peers();
  void accept_tcp_peers();
  void greet(os::Fd tcp);
  void hand_over(os::Fd connection);
  const std::optional<uint32_t> peer_uid_;
  std::shared_ptr<grpc::Server> server_;
  std::optional<keys::TlsContext> tls_;
  os::Fd unix_listener_, tcp_listener_;
  std::vector<std::thread> acceptors_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> handshakes_ = 0;
};

}  // namespace tie::kps
