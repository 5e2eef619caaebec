// Whether the runtime's process runs at all, apart from how much it has to do: a call that costs it nothing. A canary
// may wait behind requests for seconds; a stopped or deadlocked process answers nothing and is known after two silent
// calls. One thread; keeps its connection between calls.
#pragma once
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "base/result.h"

namespace tie::probe {

class Liveness {
 public:
  Liveness(std::string runtime_socket, int64_t connect_ms)
      : socket_(std::move(runtime_socket)), connect_ms_(connect_ms) {}
  // False when the runtime took the call and was silent until the deadline. Any answer is life, errors included; nobody
  // there is no matter of this call.
  bool answers(int64_t deadline_ms);

 private:
  std::string socket_;
  int64_t connect_ms_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace tie::probe
