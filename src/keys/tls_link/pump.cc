#include "keys/tls_link/pump.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "base/secret_bytes.h"

namespace tie::keys {
namespace {

constexpr size_t kBufferBytes = 16 << 10;

// Bytes on their way in one direction.
struct Buffer {
  std::array<uint8_t, kBufferBytes> bytes;
  size_t from = 0, to = 0;
  bool empty() const { return from == to; }
  void filled(size_t count) {
    from = 0;
    to = count;
  }
  ~Buffer() { secure_zero(bytes.data(), bytes.size()); }
};

class Pump {
 public:
  Pump(SSL* ssl, int tcp, int plain) : ssl_(ssl), tcp_(tcp), plain_(plain) {}

  void run() {
    while (read_tls() && write_plain() && read_plain() && write_tls()) {
      if (moved_) {
        moved_ = false;
        continue;
      }
      if (!wait()) return;
    }
  }

 private:
  bool read_tls() {
    if (!inward_.empty()) return true;
    const int got = SSL_read(ssl_, inward_.bytes.data(), kBufferBytes);
    if (got <= 0) return goes_on(got, read_waits_for_);
    read_waits_for_ = 0;
    inward_.filled(static_cast<size_t>(got));
    return moved_ = true;
  }
  bool write_tls() {
    if (outward_.empty()) return true;
    const int sent =
        SSL_write(ssl_, outward_.bytes.data() + outward_.from, static_cast<int>(outward_.to - outward_.from));
    if (sent <= 0) return goes_on(sent, write_waits_for_);
    write_waits_for_ = 0;
    outward_.from += static_cast<size_t>(sent);
    return moved_ = true;
  }
  bool read_plain() {
    if (!outward_.empty()) return true;
    const ssize_t got = ::read(plain_, outward_.bytes.data(), kBufferBytes);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) return false;
    outward_.filled(static_cast<size_t>(got));
    return moved_ = true;
  }
  bool write_plain() {
    if (inward_.empty()) return true;
    const ssize_t sent = ::send(plain_, inward_.bytes.data() + inward_.from, inward_.to - inward_.from, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (sent <= 0) return false;
    inward_.from += static_cast<size_t>(sent);
    return moved_ = true;
  }
  // TLS may want the other direction of its socket (key update): what it waits for is remembered for poll.
  bool goes_on(int said, short& waits_for) {
    const int why = SSL_get_error(ssl_, said);
    ERR_clear_error();
    waits_for = why == SSL_ERROR_WANT_READ ? POLLIN : why == SSL_ERROR_WANT_WRITE ? POLLOUT : 0;
    return waits_for != 0;
  }
  bool wait() {
    short tcp_events = 0, plain_events = 0;
    if (inward_.empty()) tcp_events |= read_waits_for_;
    if (!outward_.empty()) tcp_events |= write_waits_for_;
    if (outward_.empty()) plain_events |= POLLIN;
    if (!inward_.empty()) plain_events |= POLLOUT;
    // A side from which nothing is wanted now is not polled at all: its hang-up must not cut off what is still on its
    // way to the other.
    std::array<pollfd, 2> fds{pollfd{tcp_events != 0 ? tcp_ : -1, tcp_events, 0},
                              pollfd{plain_events != 0 ? plain_ : -1, plain_events, 0}};
    for (;;) {
      if (::poll(fds.data(), fds.size(), -1) >= 0) return true;  // the next read or write says what happened
      if (errno != EINTR) return false;
    }
  }

  SSL* const ssl_;
  const int tcp_, plain_;
  Buffer inward_, outward_;
  short read_waits_for_ = POLLIN, write_waits_for_ = 0;
  bool moved_ = false;
};

}  // namespace

Result<void> make_nonblocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) return fail_errno("fcntl", errno);
  return {};
}

void pump(SSL* ssl, int tcp, int plain) {
  const auto work = std::make_unique<Pump>(ssl, tcp, plain);
  work->run();
  SSL_shutdown(ssl);  // best effort: tells the peer that this was the end and no cut
  ERR_clear_error();
}

}  // namespace tie::keys
