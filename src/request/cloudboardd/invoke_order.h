// The one order in which a client may speak on InvokeWorkload, and what its clear parameters must look like. Pure; no
// I/O. Untrusted input. Source: ARCHITECTURE.md, "One request"; proto/cloudboard.proto.
#pragma once
#include "base/result.h"
#include "cloudboard.pb.h"

namespace tie::request::cloudboard {

// setup, parameters, chunks, the last of them final; or terminate at any point after setup. Anything else:
// kFailedPrecondition.
class InvokeOrder {
 public:
  Result<void> next(const v1::InvokeRequest& message);
  // The client closed its side: allowed after the last message only.
  Result<void> client_closed() const;
  bool complete() const { return state_ == State::kComplete; }

 private:
  enum class State { kSetup, kParameters, kChunks, kComplete };
  State state_ = State::kSetup;
};

// kBadRequest with the field at fault; kModelNotFound for another workload.
Result<v1::ClearParameters> parse_clear_parameters(std::string_view bytes);

}  // namespace tie::request::cloudboard
