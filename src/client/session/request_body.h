// The sealed body of a request before sealing: one BodyMessage, framed and padded to a size bucket. Pure function.
#pragma once
#include "base/bytes.h"
#include "base/result.h"

namespace tie::v1 {
class InferenceRequest;
}

namespace tie::client {

// kTooLarge over kMaxBodyBytes, with both numbers. The caller wipes the bytes.
Result<Bytes> request_body(const v1::InferenceRequest& request);

}  // namespace tie::client
