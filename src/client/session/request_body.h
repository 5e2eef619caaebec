// The sealed body of a request before sealing: BodyMessages, each framed and padded to a size bucket. Pure functions.
#pragma once
#include "base/bytes.h"
#include "base/result.h"

namespace tie::v1 {
class InferenceRequest;
}

namespace tie::client {

// kTooLarge over kMaxBodyBytes, with both numbers. The caller wipes the bytes.
Result<Bytes> request_body(const v1::InferenceRequest& request);

// The first message of a body to a node with one-time tokens on, framed and padded.
Bytes token_message(ByteView token);

}  // namespace tie::client
