#include "request/cloud_app/body_reader.h"

#include "base/secret_bytes.h"
#include "request/cloud_app/limits.h"

namespace tie::request::app {

BodyReader::BodyReader() : splitter_(kMaxBodyBytes, kMaxBodyBytes + kMaxFrameBytes) {}

Checked<void> BodyReader::feed(ByteView piece) {
  total_bytes_ += piece.size();
  if (total_bytes_ > kMaxBodyBytes) return refuse(Code::kTooLarge, "The request is larger than 10 MiB.");
  TIE_CHECK_OK(splitter_.feed(piece));
  while (auto bytes = splitter_.next()) {
    v1::BodyMessage message;
    bool parsed = message.ParseFromArray(bytes->data(), static_cast<int>(bytes->size()));
    secure_zero(*bytes);
    if (!parsed) return refuse(Code::kBadRequest, "The request's body is not a valid message.");
    if (message.has_one_time_token())
      return refuse(Code::kBadRequest, "This node takes no one-time token, or it was not the first message.");
    if (!message.has_request()) return refuse(Code::kBadRequest, "The request's body holds an unknown message.");
    if (request_) return refuse(Code::kBadRequest, "The request's body holds more than one request.");
    request_ = std::move(*message.mutable_request());
  }
  return {};
}

Checked<v1::InferenceRequest> BodyReader::finish() {
  TIE_CHECK_OK(splitter_.finish());
  if (!request_) return refuse(Code::kBadRequest, "The request's body is empty.");
  return std::move(*request_);
}

}  // namespace tie::request::app
