// The readiness test: one streamed token with an empty grammar, which runs and thereby initialises the streaming and
// the constrained paths of the runtime. Called from the probe's one canary thread. Keeps its connection to runtime.sock
// between calls.
#pragma once
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "base/result.h"

namespace tie::probe {

struct CanaryOptions {
  std::string runtime_socket;
  std::string model;
  int32_t token_id = 1;  // any id that every vocabulary has
  int64_t connect_ms = 200;
};

class Canary {
 public:
  explicit Canary(CanaryOptions options) : options_(std::move(options)) {}
  // Duration in ms. kIo: nobody listens; kNotReady: the runtime says that it is not ready; kOverloaded: it is alive and
  // full; kDeadline; kCorrupt: an answer that is not one token and a proper end.
  Result<int64_t> run(int64_t deadline_ms);
  // Ends a run in progress; any thread.
  void cancel();
  void disconnect() { channel_.reset(); }

 private:
  Result<void> converse(grpc::ClientContext& context);

  CanaryOptions options_;
  std::shared_ptr<grpc::Channel> channel_;
  std::mutex mutex_;
  grpc::ClientContext* running_ = nullptr;
  uint64_t runs_ = 0;
};

}  // namespace tie::probe
