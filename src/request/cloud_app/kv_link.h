// The app's connection to kvxfer.sock of one runtime: made while the process warms up, used by one request. The buffers
// that it hands over or gets are shared memory; the handles are random and work once. Threads: one. Every wait has a
// deadline; an error of the connection closes it. Secrets: none on the socket, KV in the buffers.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "cache/ensemble_warden/ensemble_warden.h"
#include "cache/kvxfer/kv_buffer.h"

namespace tie::v1 {
class KvxferReply;
class KvxferRequest;
}  // namespace tie::v1

namespace tie::request::app {

// What the runtime says of its blocks.
struct KvFacts {
  cache::CacheIdentity identity;
  uint32_t block_tokens = 0;
  uint64_t block_bytes = 0;

  cache::KvDescription description(uint32_t block_count) const;
};

class KvLink {
 public:
  // Connects and asks for the facts without waiting for the answer: the runtime may not have its model yet. kIo.
  static Result<std::unique_ptr<KvLink>> connect(const std::string& socket);

  // The answer to that question. kCorrupt when it makes no sense.
  Result<KvFacts> facts(Deadline deadline);
  // Hands over a finished buffer. Returns its handle.
  Result<std::string> offer(const cache::KvProducer& buffer, Deadline deadline);
  struct Export {
    std::string handle;
    cache::KvConsumer buffer;
  };
  // A buffer that the runtime will fill with whole blocks from first_token on.
  Result<Export> request_export(uint32_t first_token, uint32_t max_tokens, Deadline deadline);

  // Hangs up when the runtime dies.
  int fd() const { return socket_.get(); }
  // Gives back what was exported: the runtime zeroes it.
  void close() { socket_.close(); }

 private:
  struct Answer;
  explicit KvLink(os::Fd socket) : socket_(std::move(socket)) {}
  Result<Answer> ask(const v1::KvxferRequest& request, Deadline deadline, int fd = -1);
  Result<Answer> receive(Deadline deadline);

  os::Fd socket_;
  std::optional<KvFacts> facts_;
};

}  // namespace tie::request::app
