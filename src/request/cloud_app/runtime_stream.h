// The app's connection to one afm-runtime: a unix socket that is connected while the process warms up, because later
// nothing can be connected any more, and one ModelStreamInfer call over it. gRPC stays out of this header. Threads:
// one. A runtime that dies is noticed at once, by gRPC or by the socket's hang-up.
#pragma once
#include <memory>
#include <string>

#include "os/fd.h"
#include "request/cloud_app/refusal.h"
#include "request/cloud_app/runtime_message.h"

namespace tie::request::app {

class RuntimeStream {
 public:
  // kIo when nobody listens there.
  static Result<std::unique_ptr<RuntimeStream>> connect(const std::string& socket);
  virtual ~RuntimeStream() = default;

  // Polls as hung up when the runtime has gone.
  virtual int hangup_fd() const = 0;
  virtual void start(const RuntimeCall& call) = 0;

  enum class Got { kEvent, kNothingYet, kEnd };
  // Waits up to wait_ms. kEvent fills `event`. kEnd: the runtime ended the stream before its final response.
  // Refusals of the runtime come as they are; a lost runtime is kRuntimeLost.
  virtual Checked<Got> next(int64_t wait_ms, RuntimeEvent& event) = 0;
  virtual void cancel() = 0;
};

}  // namespace tie::request::app
