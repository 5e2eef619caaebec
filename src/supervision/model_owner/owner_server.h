// Framed messages of proto/owner.proto, descriptors beside the reply that names them, behind several doors: owner.sock
// tells states and takes orders to reload, and hands out nothing; DIR/MODEL/weights.sock is one model's and answers for
// that model alone. Which of them a client may reach is its sandbox's matter; what it gets there is decided here, by
// the door it came through, never by the name that it gives. One thread per connection, at most max_connections of each
// door; a newcomer beyond that displaces the connection of its door that has been idle longest, and is refused where
// none is idle, so a client that hoards connections harms itself alone. A client's death ends its thread and nothing
// else. Any malformed message ends its connection. Threads: run() blocks; everything else happens on the threads it
// owns, which have ended when it returns.
#pragma once
#include <atomic>
#include <list>
#include <map>
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
inline constexpr const char* kModelSocketFile = "weights.sock";

struct OwnerServerOptions {
  size_t max_connections = 32;      // of each door
  int64_t idle_ms = 600'000;        // between requests of a connection
  int64_t message_ms = 5'000;       // for one whole message, either way
  int64_t attach_wait_ms = 30'000;  // for a model that is still loading
  Bytes release_id;                 // told to runtimes; 32 bytes or empty
};

class OwnerServer {
 public:
  OwnerServer(ModelStore& store, OwnerServerOptions options);
  ~OwnerServer();

  // Listens on folder/MODEL/weights.sock for every model of the store, and from now on for each that joins it. Makes
  // the folders that are missing. A model whose socket cannot be made is told in the log and tried again.
  Result<void> serve_models_in(const std::string& folder);

  // Serves until stop_fd becomes readable. `listener` must be a listening unix socket: the operator's door.
  Result<void> run(int listener, int stop_fd);

 private:
  struct Connection;
  struct Answer;

  // A listening socket and the model that it serves; without one the operator's.
  struct Door {
    std::string model;
    int listener;
  };

  void open_doors();
  void accept_from(const Door& door);
  void serve(Connection& connection);
  Answer answer(Connection& connection, const v1::OwnerRequest& request);
  Result<Answer> operator_request(const v1::OwnerRequest& request);
  Result<Answer> model_request(Connection& connection, const v1::OwnerRequest& request);
  Result<Answer> attach_model(Connection& connection, const v1::OwnerRequest& request);
  Result<void> lend(Connection& connection, uint32_t rank, Answer& out);
  Result<Answer> prefix_request(const std::string& name, const v1::OwnerRequest& request);
  // False: every place of that door is being served.
  bool make_room(const std::string& model);
  // False: the connection was displaced, and its thread is to end without another answer.
  bool begin_answer(Connection& connection);
  void reap();

  ModelStore& store_;
  OwnerServerOptions options_;
  const std::string instance_id_ = random_hex(8);
  std::string models_folder_;            // empty: none is served
  std::map<std::string, os::Fd> doors_;  // by model; run()'s thread alone once it runs
  std::mutex mutex_;
  std::list<std::unique_ptr<Connection>> connections_;
};

}  // namespace tie::owner
