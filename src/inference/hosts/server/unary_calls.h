// The calls that answer at once: liveness, readiness, metadata, configuration, grpc.health.v1's Check. Every
// administrative call of Triton's interface (repository, statistics, shared memory, trace and log settings) is unknown
// here, so it is answered UNIMPLEMENTED: a compromised app cannot change the runtime. Thread-safe.
#pragma once
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <atomic>
#include <string>

namespace tie::runtime_host {

class UnaryCalls {
 public:
  explicit UnaryCalls(std::string model) : model_(std::move(model)) {}
  void set_ready(bool ready) { ready_ = ready; }

  struct Answer {
    grpc::Status status;
    grpc::ByteBuffer reply;  // with an OK status
  };
  // method: "/package.Service/Method". UNIMPLEMENTED for one that is not served, INVALID_ARGUMENT for bytes that are
  // not its request.
  Answer answer(const std::string& method, grpc::ByteBuffer& request) const;

 private:
  grpc::Status known(const std::string& name, const std::string& version) const;

  const std::string model_;
  std::atomic<bool> ready_{false};
};

}  // namespace tie::runtime_host
