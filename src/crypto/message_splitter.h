// Cuts a byte stream, whatever way it arrives in pieces, into its 4-byte big-endian length-prefixed messages.
// Untrusted input. Holds at most one incomplete message. One thread. Source: ARCHITECTURE.md, "Request encryption".
#pragma once
#include <optional>

#include "base/bytes.h"
#include "base/result.h"

namespace tie::crypto {

constexpr size_t kMessageLengthBytes = 4;
constexpr size_t kMaxPieceBytes = 1 << 20;

class MessageSplitter {
 public:
  // max_message_bytes: of one message without its prefix; max_buffered_bytes: fed and not yet taken (default: an
  // incomplete message and one piece of kMaxPieceBytes, so that a caller who takes messages between feeds never meets
  // it).
  explicit MessageSplitter(size_t max_message_bytes, size_t max_buffered_bytes = 0);
  ~MessageSplitter();
  MessageSplitter(MessageSplitter&&) = default;
  MessageSplitter& operator=(MessageSplitter&&) = default;

  // kTooLarge when a prefix announces more than max_message_bytes or more than max_buffered_bytes wait; the object is
  // then spent.
  Result<void> feed(ByteView piece);
  // The next complete message, in order; nullopt when there is none yet. Take messages between feeds.
  std::optional<Bytes> next();
  // At the end of the stream: kBadRequest when an incomplete message is left, kFailedPrecondition when complete ones
  // were not taken.
  Result<void> finish() const;

 private:
  Result<void> check_prefix();
  size_t max_message_bytes_, max_buffered_bytes_;
  Bytes buffer_;
  size_t start_ = 0;  // of the first byte not yet taken
  bool broken_ = false;
};

// The message with its prefix in front.
Bytes frame_message(ByteView message);

}  // namespace tie::crypto
