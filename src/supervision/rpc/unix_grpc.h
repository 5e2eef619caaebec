// gRPC over unix sockets for the supervision daemons. Callers: tie-status-probe, tie-controllerd, gpuhealthd, `tie
// node`. Threads: connect() any; UnixGrpcServer belongs to the thread that made it. A channel lives for one connection:
// when that breaks, calls fail with UNAVAILABLE and the caller connects again, at its own pace.
#pragma once
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace tie::rpc {

inline constexpr int kMaxMessageBytes = 4 << 20;

// Errors: those of os::connect_unix.
Result<std::shared_ptr<grpc::Channel>> connect(const std::string& socket_path, Deadline deadline);

// Deadlines of calls are monotonic with us and wall-clock with gRPC.
std::chrono::system_clock::time_point call_deadline(int64_t ms);

// The row of the product's error table, with its name in the trailing metadata `tie-error`.
grpc::Status to_status(const Error& error, grpc::ServerContext* context = nullptr);
Error to_error(const grpc::Status& status);

class UnixGrpcServer {
 public:
  // A stale socket is replaced. `max_threads` bounds concurrent calls, streams included. kIo when the path cannot be
  // bound.
  static Result<UnixGrpcServer> start(const std::string& socket_path, const std::vector<grpc::Service*>& services,
                                      int max_threads = 32);
  UnixGrpcServer(UnixGrpcServer&&) = default;
  UnixGrpcServer& operator=(UnixGrpcServer&&) = default;
  ~UnixGrpcServer();
  // Calls in flight get until the deadline, then they are cancelled.
  void stop(Deadline deadline);

 private:
  UnixGrpcServer() = default;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace tie::rpc
