#include "request/frame_link/frame_link.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "os/passed_descriptors.h"

namespace tie::request {
namespace {

constexpr size_t kHeaderBytes = 4;
constexpr size_t kFirstReadBytes = 4 << 10;
constexpr size_t kMostReadBytes = 1 << 20;
constexpr size_t kFramesPerSend = 16;
constexpr size_t kControlBytes = CMSG_SPACE(os::kMaxPassedFds * sizeof(int));

bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK;
}

}  // namespace

FrameLink::~FrameLink() {
  secure_zero(in_);
  for (auto& frame : out_) secure_zero(frame.bytes);
}

Result<std::optional<os::Frame>> FrameLink::next() {
  for (;;) {
    TIE_TRY(auto frame, take());
    if (frame) return frame;
    if (!open()) return fail(Code::kIo, "connection closed");
    if (std::exchange(drained_, false)) return std::optional<os::Frame>{};
    TIE_TRY(Fill got, fill());
    if (got.closed) {
      socket_.close();
      return fail(Code::kIo, "connection closed");
    }
    if (!got.more) return std::optional<os::Frame>{};
  }
}

bool FrameLink::holds_frame() const {
  const size_t have = end_ - start_;
  if (have < kHeaderBytes) return false;
  const size_t size = load_u32_be(in_.data() + start_);
  return size > limits_.max_frame_bytes || have - kHeaderBytes >= size;
}

Result<std::optional<os::Frame>> FrameLink::take() {
  size_t have = end_ - start_;
  if (have < kHeaderBytes) {
    drop_taken();
    return std::optional<os::Frame>{};
  }
  size_t size = load_u32_be(in_.data() + start_);
  if (size > limits_.max_frame_bytes) return fail(Code::kTooLarge, "the peer's message is over the limit");
  if (have < kHeaderBytes + size) {
    drop_taken();
    return std::optional<os::Frame>{};
  }
  os::Frame frame;
  auto begin = in_.begin() + static_cast<ptrdiff_t>(start_ + kHeaderBytes);
  frame.payload.assign(begin, begin + static_cast<ptrdiff_t>(size));
  uint64_t frame_begin = in_offset_ + start_;
  uint64_t frame_end = frame_begin + kHeaderBytes + size;
  // The kernel ends a read after the piece that carried descriptors, so they belong to the last frame that begins in
  // that read.
  if (!fds_.empty() && frame_begin >= fds_begin_ && frame_begin < fds_end_ && frame_end >= fds_end_)
    frame.fds = std::move(fds_);
  if (frame.fds.size() > limits_.max_fds)
    return fail(Code::kCorrupt, "the peer passed descriptors that this message does not carry");
  if (!frame.fds.empty()) fds_.clear();
  start_ += kHeaderBytes + size;
  return frame;
}

void FrameLink::drop_taken() {
  if (start_ == 0) return;
  std::memmove(in_.data(), in_.data() + start_, end_ - start_);
  secure_zero(in_.data() + (end_ - start_), start_);
  end_ -= start_;
  in_offset_ += start_;
  start_ = 0;
}

// Room for the rest of the frame that has begun, or for a few small ones. Grows when it was too small, never shrinks.
void FrameLink::make_room() {
  size_t wanted = kFirstReadBytes;
  if (end_ >= kHeaderBytes) wanted = std::max(wanted, kHeaderBytes + load_u32_be(in_.data()) - end_);
  wanted = std::min(wanted, kMostReadBytes);
  if (in_.size() >= end_ + wanted) return;
  Bytes grown(std::max(end_ + wanted, std::min(2 * in_.size(), in_.size() + kMostReadBytes)));
  std::copy_n(in_.begin(), end_, grown.begin());
  secure_zero(in_);
  in_ = std::move(grown);
}

Result<FrameLink::Fill> FrameLink::fill() {
  make_room();
  size_t room = in_.size() - end_;
  alignas(cmsghdr) char control[kControlBytes];
  iovec part{in_.data() + end_, room};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  int error = errno;
  if (n == 0 || (n < 0 && error == ECONNRESET)) return Fill{.closed = true};
  if (n < 0 && (would_block(error) || error == EINTR)) return Fill{};
  if (n < 0) return fail_errno("receive", error);
  drained_ = static_cast<size_t>(n) < room;
  uint64_t begin = in_offset_ + end_;
  end_ += static_cast<size_t>(n);
  std::vector<os::Fd> fds = os::take_descriptors(message);
  if ((message.msg_flags & MSG_CTRUNC) != 0 || (!fds.empty() && !fds_.empty()))
    return fail(Code::kCorrupt, "the peer passed more descriptors than this link takes");
  if (!fds.empty()) {
    fds_ = std::move(fds);
    fds_begin_ = begin;
    fds_end_ = in_offset_ + end_;
  }
  return Fill{.more = true};
}

Result<void> FrameLink::send(ByteView payload, std::span<const int> fds) {
  if (!open()) return fail(Code::kIo, "connection closed");
  if (payload.size() > UINT32_MAX || queued_ + payload.size() > limits_.max_queued_bytes)
    return fail(Code::kTooLarge, "more waits for the peer than this link holds");
  if (fds.size() > os::kMaxPassedFds) return fail(Code::kTooLarge, "too many descriptors for one frame");
  Outgoing frame;
  frame.bytes.reserve(kHeaderBytes + payload.size());
  append_u32_be(frame.bytes, static_cast<uint32_t>(payload.size()));
  append(frame.bytes, payload);
  for (int fd : fds) {
    os::Fd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    if (!copy) return fail_errno("passing a descriptor", errno);
    frame.fds.push_back(std::move(copy));
  }
  queued_ += frame.bytes.size();
  out_.push_back(std::move(frame));
  if (out_.size() == 1) return flush();
  return {};
}

Result<void> FrameLink::flush() {
  while (!out_.empty()) {
    TIE_TRY(size_t sent, send_some());
    if (sent == 0) return {};
    drop_sent(sent);
  }
  return {};
}

// Several queued frames in one call; a frame with descriptors begins a call of its own.
Result<size_t> FrameLink::send_some() {
  std::array<iovec, kFramesPerSend> parts;
  size_t count = 0;
  for (auto& frame : out_) {
    if (count == parts.size() || (count > 0 && !frame.fds.empty())) break;
    parts[count++] = {frame.bytes.data() + frame.sent, frame.bytes.size() - frame.sent};
    if (!frame.fds.empty()) break;
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  alignas(cmsghdr) char control[kControlBytes] = {};
  std::vector<int> fds;
  for (auto& fd : out_.front().fds) fds.push_back(fd.get());
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  }
  for (;;) {
    ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EINTR) continue;
    if (would_block(errno)) return size_t{0};
    if (errno == EPIPE || errno == ECONNRESET) return fail(Code::kIo, "connection closed");
    return fail_errno("send", errno);
  }
}

void FrameLink::drop_sent(size_t bytes) {
  queued_ -= bytes;
  while (bytes > 0) {
    Outgoing& frame = out_.front();
    frame.fds.clear();  // they travel on the first byte
    size_t left = frame.bytes.size() - frame.sent;
    if (bytes < left) {
      frame.sent += bytes;
      return;
    }
    bytes -= left;
    secure_zero(frame.bytes);
    out_.pop_front();
  }
}

}  // namespace tie::request
