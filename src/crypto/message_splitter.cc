#include "crypto/message_splitter.h"

#include <algorithm>

#include "base/secret_bytes.h"

namespace tie::crypto {

MessageSplitter::MessageSplitter(size_t max_message_bytes, size_t max_buffered_bytes)
    : max_message_bytes_(max_message_bytes),
      max_buffered_bytes_(max_buffered_bytes != 0 ? max_buffered_bytes
                                                  : max_message_bytes + kMessageLengthBytes + kMaxPieceBytes) {}

MessageSplitter::~MessageSplitter() {
  secure_zero(buffer_);
}

Result<void> MessageSplitter::feed(ByteView piece) {
  if (broken_) return fail(Code::kFailedPrecondition, "the stream of messages already failed");
  if (start_ != 0) {  // what was taken makes room; amortised by the size of the pieces
    const size_t left = buffer_.size() - start_;
    std::move(buffer_.begin() + static_cast<ptrdiff_t>(start_), buffer_.end(), buffer_.begin());
    secure_zero(buffer_.data() + left, start_);
    buffer_.resize(left);
    start_ = 0;
  }
  if (piece.size() > max_buffered_bytes_ - std::min(max_buffered_bytes_, buffer_.size())) {
    broken_ = true;
    return fail(Code::kTooLarge,
                "a message is larger than the limit of " + std::to_string(max_message_bytes_) + " bytes");
  }
  append(buffer_, piece);
  return check_prefix();
}

// An announced length is judged when its four bytes are there, not when the message is: nothing is buffered for it in
// vain.
Result<void> MessageSplitter::check_prefix() {
  if (buffer_.size() - start_ < kMessageLengthBytes) return {};
  if (load_u32_be(buffer_.data() + start_) <= max_message_bytes_) return {};
  broken_ = true;
  return fail(Code::kTooLarge,
              "a message is larger than the limit of " + std::to_string(max_message_bytes_) + " bytes");
}

std::optional<Bytes> MessageSplitter::next() {
  if (broken_ || buffer_.size() - start_ < kMessageLengthBytes) return std::nullopt;
  const size_t length = load_u32_be(buffer_.data() + start_);
  if (length > max_message_bytes_) {
    broken_ = true;  // reported by the next feed or finish
    return std::nullopt;
  }
  if (buffer_.size() - start_ - kMessageLengthBytes < length) return std::nullopt;
  const auto from = buffer_.begin() + static_cast<ptrdiff_t>(start_ + kMessageLengthBytes);
  Bytes message(from, from + static_cast<ptrdiff_t>(length));
  start_ += kMessageLengthBytes + length;
  return message;
}

Result<void> MessageSplitter::finish() const {
  if (broken_)
    return fail(Code::kTooLarge,
                "a message is larger than the limit of " + std::to_string(max_message_bytes_) + " bytes");
  const size_t left = buffer_.size() - start_;
  if (left == 0) return {};
  if (left >= kMessageLengthBytes && left - kMessageLengthBytes >= load_u32_be(buffer_.data() + start_))
    return fail(Code::kFailedPrecondition, "messages were not taken");
  return fail(Code::kBadRequest, "the stream ends inside a message");
}

Bytes frame_message(ByteView message) {
  Bytes out;
  out.reserve(message.size() + kMessageLengthBytes);
  append_u32_be(out, static_cast<uint32_t>(message.size()));
  append(out, message);
  return out;
}

}  // namespace tie::crypto
