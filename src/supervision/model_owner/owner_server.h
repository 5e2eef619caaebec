// owner.sock: framed messages of proto/owner.proto, descriptors beside the reply that names them.
// One thread per connection, at most max_connections of them; a newcomer beyond that displaces the connection that has
// been idle longest, so a client that hoards connections harms itself first. A client's death ends its thread and
// nothing else. Any malformed message ends its connection. Threads: run() blocks; everything else happens on the
// threads it owns, which have ended when it returns.
#pragma once
#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/bytes.h"
#include "base/random.h"
#include "base/result.h"
#include "os/fd.h"
#include "supervision/model_owner/model_store.h"

namespace tie::v1 {
class OwnerRequest;
class OwnerReply;
}  // namespace tie::v1

namespace tie::owner {

inline constexpr size_t kMaxRequestBytes = size_t{8} << 20;  // a trie with its token ids

struct OwnerServerOptions {
  size_t max_connections = 32;
  int64_t idle_ms = 600'000;        // between requests of a connection
  int64_t message_ms = 5'000;       // for one whole message, either way
  int64_t attach_wait_ms = 30'000;  // for a model that is still loading
  Bytes release_id;                 // told to runtimes; 32 bytes or empty
};

class OwnerServer {
 public:
  OwnerServer(ModelStore& store, OwnerServerOptions options);
  ~OwnerServer();

  // Serves until stop_fd becomes readable. `listener` must be a listening unix socket.
  Result<void> run(int listener, int stop_fd);

 private:
  struct Connection;
  struct Answer;

  void serve(Connection& connection);
  Answer answer(const v1::OwnerRequest& request);
  Result<Answer> attach_model(const v1::OwnerRequest& request);
  Result<Answer> prefix_request(const v1::OwnerRequest& request);
  void make_room();
  void reap();

  ModelStore& store_;
  OwnerServerOptions options_;
  const std::string instance_id_ = random_hex(8);
  std::mutex mutex_;
  std::list<std::unique_ptr<Connection>> connections_;
};

}  // namespace tie::owner
