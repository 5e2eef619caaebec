#include "client/session/request_body.h"

#include "base/byte_buckets.h"
#include "base/secret_bytes.h"
#include "client/session/limits.h"
#include "inference.pb.h"

namespace tie::client {
namespace {

constexpr size_t kLengthPrefixBytes = 4;

Error too_large(size_t size) {
  return {Code::kTooLarge,
          "the request has " + std::to_string(size) + " bytes, the node takes " + std::to_string(kMaxBodyBytes)};
}

// `message` with its filler.
Bytes framed(const v1::BodyMessage& message) {
  const size_t size = message.ByteSizeLong();
  Bytes body;
  body.reserve(kLengthPrefixBytes + size);
  append_u32_be(body, static_cast<uint32_t>(size));
  body.resize(kLengthPrefixBytes + size);
  tie_check(message.SerializeToArray(body.data() + kLengthPrefixBytes, static_cast<int>(size)),
            "a message that was measured serializes");
  return body;
}

}  // namespace

Result<Bytes> request_body(const v1::InferenceRequest& request) {
  v1::BodyMessage message;
  *message.mutable_request() = request;
  size_t unpadded = kLengthPrefixBytes + message.ByteSizeLong();
  if (unpadded > kMaxBodyBytes) return std::unexpected(too_large(unpadded));
  if (auto filler = filler_content_size(unpadded)) message.set_filler(std::string(*filler, '\0'));
  if (kLengthPrefixBytes + message.ByteSizeLong() > kMaxBodyBytes) return std::unexpected(too_large(unpadded));
  return framed(message);
}

Bytes token_message(ByteView token) {
  v1::BodyMessage message;
  message.set_one_time_token(token.data(), token.size());
  if (auto filler = filler_content_size(kLengthPrefixBytes + message.ByteSizeLong()))
    message.set_filler(std::string(*filler, '\0'));
  return framed(message);
}

}  // namespace tie::client
