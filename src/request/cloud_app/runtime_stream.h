// The app's connection to one afm-runtime: a unix socket that is connected while the process warms up, because later
// nothing can be connected any more, and one ModelStreamInfer call over it (grpc_call.h). Threads: one. A runtime that
// dies is noticed by the socket's hang-up.
#pragma once
#include <memory>
#include <string>

#include "os/fd.h"
#include "request/cloud_app/grpc_call.h"
#include "request/cloud_app/refusal.h"
#include "request/cloud_app/runtime_message.h"

namespace tie::request::app {

class RuntimeStream {
 public:
  // kIo when nobody listens there.
  static Result<std::unique_ptr<RuntimeStream>> connect(const std::string& socket);

  int fd() const { return socket_.get(); }
  // While there is no call: takes what the runtime's side of the connection says, and answers it. False: it is gone, or
  // going.
  bool keep_alive();
  void start(const RuntimeCall& call);

  enum class Got { kEvent, kNothingYet };
  // Waits up to wait_ms. kEvent fills `event`. Refusals of the runtime come as they are; a lost runtime, and a stream
  // that ended before its final response, are kRuntimeLost.
  Checked<Got> next(int64_t wait_ms, RuntimeEvent& event);
  void cancel();

 private:
  RuntimeStream(os::Fd socket, std::unique_ptr<GrpcCall> call);
  Refusal ended() const;
  Result<void> receive();
  Result<void> flush();

  os::Fd socket_;
  std::unique_ptr<GrpcCall> call_;
  inference::ModelStreamInferResponse response_;
  Bytes buffer_;
  bool wants_write_ = false, broken_ = false;
};

}  // namespace tie::request::app
