// The request's plaintext, in pieces cut anywhere, back into the one InferenceRequest it must hold. Untrusted input.
// Limits: kMaxBodyBytes. One object per request.
#pragma once
#include <optional>

#include "crypto/message_splitter.h"
#include "inference.pb.h"
#include "request/cloud_app/refusal.h"

namespace tie::request::app {

class BodyReader {
 public:
  BodyReader();
  // kTooLarge, kBadRequest; the object is then spent.
  Checked<void> feed(ByteView piece);
  // After the last piece. kBadRequest for a cut message, none, or more than one.
  Checked<v1::InferenceRequest> finish();

 private:
  crypto::MessageSplitter splitter_;
  std::optional<v1::InferenceRequest> request_;
  size_t total_bytes_ = 0;
};

}  // namespace tie::request::app
