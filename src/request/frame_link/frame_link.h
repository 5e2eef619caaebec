// One framed unix connection (os/unix_socket.h: 4-byte size, message, descriptors on its first byte) for a poll loop:
// reads what has come, queues what cannot be sent yet, never blocks. Used by cloudboardd and cb_jobhelper, where one
// thread watches many peers. Untrusted input: the peer's bytes. Limits are given at creation; a peer that passes one
// gets kTooLarge and the link is spent. Threads: one. Owns: the socket, queued bytes and descriptors. Buffers are
// zeroed when they are let go: they carry plaintext.
#pragma once
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/secret_bytes.h"
#include "os/unix_socket.h"

namespace tie::request {

struct FrameLimits {
  size_t max_frame_bytes = 1 << 20;
  size_t max_queued_bytes = 4 << 20;  // beyond it send() fails: callers pause their source long before
  size_t max_fds = 0;                 // accepted with one incoming frame
};

class FrameLink {
 public:
  FrameLink() = default;
  FrameLink(os::Fd socket, const FrameLimits& limits) : socket_(std::move(socket)), limits_(limits) {}
  FrameLink(FrameLink&&) = default;
  FrameLink& operator=(FrameLink&&) = default;
  ~FrameLink();

  int fd() const { return socket_.get(); }
  bool open() const { return socket_.valid(); }
  void close() { socket_.close(); }

  // The next complete frame; nullopt when the poll loop should wait again. Call until nullopt. Errors: kIo "connection
  // closed", kTooLarge, kCorrupt. Frames that came before the peer closed are given first.
  Result<std::optional<os::Frame>> next();
  // Whether next() has something to give (or a fault to report) without reading. Who stopped asking before nullopt asks
  // this before the next poll: the socket is silent about what was read already.
  bool holds_frame() const;

  // Sends at once what the kernel takes and queues the rest. `fds` are duplicated. Errors: kTooLarge over
  // max_queued_bytes, kIo.
  Result<void> send(ByteView payload, std::span<const int> fds = {});
  Result<void> flush();
  bool wants_write() const { return !out_.empty(); }
  size_t queued_bytes() const { return queued_; }

 private:
  struct Outgoing {
    Bytes bytes;  // with the size in front
    size_t sent = 0;
    std::vector<os::Fd> fds;
  };
  struct Fill {
    bool more = false;    // bytes were read
    bool closed = false;  // the peer is gone
  };
  Result<std::optional<os::Frame>> take();
  Result<Fill> fill();
  void make_room();
  Result<size_t> send_some();
  void drop_taken();
  void drop_sent(size_t bytes);

  os::Fd socket_;
  FrameLimits limits_;
  Bytes in_;  // storage; what was read and not yet given lies in [start_, end_)
  size_t start_ = 0, end_ = 0;
  uint64_t in_offset_ = 0;   // position in the stream of in_[0]
  std::vector<os::Fd> fds_;  // came with the bytes [fds_begin_, fds_end_) of the stream
  uint64_t fds_begin_ = 0, fds_end_ = 0;
  bool drained_ = false;  // the last read took all there was: asking again can wait for the next poll
  std::deque<Outgoing> out_;
  size_t queued_ = 0;
};

// Protobuf messages over it. Templates, so that this header needs no protobuf.
template <typename Message>
Result<void> send_message(FrameLink& link, const Message& message, std::span<const int> fds = {}) {
  std::string text;
  if (!message.SerializeToString(&text)) return fail(Code::kInternal, "message does not serialize");
  auto sent = link.send(as_bytes(text), fds);
  secure_zero(text);
  return sent;
}

template <typename Message>
Result<void> parse_message(os::Frame& frame, Message& out) {
  bool valid = out.ParseFromArray(frame.payload.data(), static_cast<int>(frame.payload.size()));
  secure_zero(frame.payload);
  if (!valid) return fail(Code::kCorrupt, "bytes are not a valid message");
  return {};
}

}  // namespace tie::request
