#include "client/proxy/client_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tie::client {
namespace {
constexpr int64_t kStopCheckMs = 200;
constexpr int64_t kLingerMs = 2'000;
}  // namespace

bool ClientStream::wait(short events, int64_t ms) const {
  pollfd entry{.fd = socket_, .events = events};
  int ready;
  do {
    ready = ::poll(&entry, 1, int(std::min<int64_t>(ms, INT32_MAX)));
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

bool ClientStream::wait_for_request(const std::atomic<bool>& stop, int64_t idle_ms) {
  Deadline idle = Deadline::in_ms(idle_ms);
  while (start_ == end_) {
    if (stop || idle.passed()) return false;
    if (!wait(POLLIN, std::min(kStopCheckMs, idle.remaining_ms()))) continue;
    ssize_t got = ::recv(socket_, buffer_.data(), buffer_.size(), 0);
    if (got <= 0) return false;
    start_ = 0;
    end_ = size_t(got);
    // A client that sends headers and body apart, with Nagle's algorithm on, waits for this acknowledgement before the
    // body.
    int on = 1;
    ::setsockopt(socket_, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
  }
  budget_bytes_ = kMaxHttpHeaderBytes;
  deadline_ = Deadline::in_ms(kHeaderTimeoutMs);
  over_budget_ = false;
  return !stop;
}

void ClientStream::begin_body(bool chunked) {
  budget_bytes_ = chunked ? kMaxHttpBodyBytes + kMaxHttpHeaderBytes : kMaxDrainedBytes;
  deadline_ = Deadline::in_ms(kBodyTimeoutMs);
}

bool ClientStream::is_readable() const {
  return start_ < end_ || wait(POLLIN, 0);
}

bool ClientStream::is_writable() const {
  if (!wait(POLLOUT, kWriteTimeoutMs)) return false;
  char byte;
  ssize_t got = ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
}

ssize_t ClientStream::read(char* out, size_t size) {
  if (budget_bytes_ == 0) {
    over_budget_ = true;
    return -1;
  }
  size = std::min(size, budget_bytes_);
  if (start_ == end_) {
    if (!wait(POLLIN, deadline_.remaining_ms())) return -1;
    // Large pieces of a body go straight to the reader.
    if (size >= buffer_.size()) {
      ssize_t got = ::recv(socket_, out, size, 0);
      if (got > 0) budget_bytes_ -= size_t(got);
      return got;
    }
    ssize_t got = ::recv(socket_, buffer_.data(), buffer_.size(), 0);
    if (got <= 0) return got;
    start_ = 0;
    end_ = size_t(got);
  }
  size = std::min(size, end_ - start_);
  std::memcpy(out, buffer_.data() + start_, size);
  start_ += size;
  budget_bytes_ -= size;
  return ssize_t(size);
}

ssize_t ClientStream::write(const char* data, size_t size) {
  Deadline deadline = Deadline::in_ms(kWriteTimeoutMs);
  size_t sent = 0;
  while (sent < size) {
    ssize_t got = ::send(socket_, data + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (got > 0) {
      sent += size_t(got);
    } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!wait(POLLOUT, deadline.remaining_ms())) return -1;
    } else if (got < 0 && errno != EINTR) {
      return -1;
    }
  }
  return ssize_t(sent);
}

void ClientStream::linger() {
  ::shutdown(socket_, SHUT_WR);
  Deadline deadline = Deadline::in_ms(kLingerMs);
  size_t dropped = 0;
  while (dropped < kMaxDrainedBytes && wait(POLLIN, deadline.remaining_ms())) {
    ssize_t got = ::recv(socket_, buffer_.data(), buffer_.size(), 0);
    if (got <= 0) return;
    dropped += size_t(got);
  }
}

}  // namespace tie::client
