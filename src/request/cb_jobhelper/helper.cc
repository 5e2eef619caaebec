#include "request/cb_jobhelper/helper.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "os/framed_message.h"
#include "os/process.h"
#include "request/frame_link/frame_link.h"

namespace tie::request::jobhelper {
namespace {

constexpr FrameLimits kLimits{.max_frame_bytes = kMaxFrameBytes, .max_queued_bytes = kMaxQueuedBytes};
// The store connection may come with Start.
constexpr FrameLimits kCloudboardLimits{
    .max_frame_bytes = kMaxFrameBytes, .max_queued_bytes = kMaxQueuedBytes, .max_fds = 1};

class Loop : public Peers {
 public:
  Loop(Connections connections, TokenVerifier verifier)
      : cloudboard_(std::move(connections.cloudboard), kCloudboardLimits),
        app_(std::move(connections.app), kLimits),
        keys_(std::move(connections.keys), kLimits),
        spend_(std::move(connections.spend)),
        session_(*this, std::move(verifier)) {}

  Result<void> run() {
    while (!session_.done()) {
      TIE_CHECK_OK(wait());
      if (cloudboard_.open() && readable(kCloudboard)) read_cloudboard();
      if (keys_.open() && readable(kKeys)) read_keys();
      if (app_.open() && readable(kApp)) read_app();
      if (readable(kSpend) && !session_.started()) session_.lost_keys();  // of no use without: the pool starts another
      flush();
      check_deadlines();
    }
    return send_the_rest();
  }

  void to_cloudboard(const v1::FromHelper& message) override {
    last_event_ms_ = monotonic_ms();
    if (cloudboard_.open() && !send_message(cloudboard_, message)) cloudboard_.close();
  }
  void to_app(const v1::ToApp& message) override {
    last_event_ms_ = monotonic_ms();
    if (!app_.open()) return;
    std::array<int, 1> fds{store_.get()};
    bool with_store = message.has_parameters() && store_;
    if (!send_message(app_, message, with_store ? std::span<const int>(fds) : std::span<const int>())) app_.close();
    if (with_store) store_.close();
  }
  void to_keys(const v1::DecapRequest& message) override {
    last_event_ms_ = monotonic_ms();
    if (!send_message(keys_, message)) keys_.close();
  }

 private:
  enum Source { kCloudboard, kApp, kKeys, kSpend, kSources };

  bool readable(Source source) const { return (polled_[source].revents & (POLLIN | POLLHUP | POLLERR)) != 0; }

  // A peer is not read while what it says would have to be held: back-pressure reaches the client or the runtime
  // instead.
  Result<void> wait() {
    auto watch = [](const FrameLink& link, bool read) {
      int events = (read ? POLLIN : 0) | (link.wants_write() ? POLLOUT : 0);
      // Without anything to watch for, a poll on a closed peer would return at once and for ever.
      return pollfd{events != 0 && link.open() ? link.fd() : -1, static_cast<short>(events), 0};
    };
    bool read_cloudboard = session_.takes_input() && app_.queued_bytes() < kPauseQueuedBytes;
    polled_[kCloudboard] = watch(cloudboard_, read_cloudboard);
    polled_[kApp] = watch(app_, cloudboard_.queued_bytes() < kPauseQueuedBytes);
    polled_[kKeys] = watch(keys_, true);
    polled_[kSpend] = {spend_ && !session_.started() ? spend_.get() : -1, POLLIN, 0};
    if (!read_cloudboard && cloudboard_.open())
      polled_[kCloudboard].fd = cloudboard_.fd();  // its hang-up counts even then
    // What was read with an earlier frame, while there was no room for more: no poll wakes for it.
    const bool held = read_cloudboard && cloudboard_.open() && cloudboard_.holds_frame();
    int timeout = held ? 0 : session_.started() ? 1000 : -1;
    if (::poll(polled_.data(), polled_.size(), timeout) < 0 && errno != EINTR) return fail_errno("poll", errno);
    if (held) polled_[kCloudboard].revents |= POLLIN;
    return {};
  }

  void read_cloudboard() {
    if ((polled_[kCloudboard].events & POLLIN) == 0) return session_.lost_cloudboard();  // woken by a hang-up alone
    while (!session_.done() && session_.takes_input() && app_.queued_bytes() < kPauseQueuedBytes) {
      auto frame = cloudboard_.next();
      if (!frame) return session_.lost_cloudboard();
      if (!*frame) return;
      v1::ToHelper message;
      if (!parse_message(**frame, message)) return session_.give_up();
      if (!(*frame)->fds.empty()) store_ = std::move((*frame)->fds.front());
      session_.from_cloudboard(message);
      if (message.has_start()) secure_zero(*message.mutable_start()->mutable_ticket());
    }
  }

  void read_keys() {
    auto frame = keys_.next();
    if (frame && !*frame) return;
    v1::DecapReply reply;
    if (!frame || !parse_message(**frame, reply)) {
      keys_.close();
      return session_.lost_keys();
    }
    session_.from_keys(reply);
    secure_zero(*reply.mutable_shared_secret());
    keys_.close();  // one decapsulation is all this process ever asks for
  }

  void read_app() {
    while (!session_.done()) {
      auto frame = app_.next();
      if (frame && !*frame) return;
      v1::FromApp message;
      if (!frame || !parse_message(**frame, message)) {
        app_.close();
        return session_.lost_app();
      }
      session_.from_app(message);
    }
  }

  void flush() {
    if (cloudboard_.open() && !cloudboard_.flush()) session_.lost_cloudboard();
    if (app_.open() && !app_.flush()) app_.close();
    if (!app_.open()) session_.lost_app();
    if (!cloudboard_.open()) session_.lost_cloudboard();
    if (!keys_.open()) session_.lost_keys();
  }

  void check_deadlines() {
    if (!session_.started()) return;
    int64_t idle_ms = monotonic_ms() - last_event_ms_;
    if (session_.waits_for_keys() ? idle_ms > kDecapTimeoutMs : idle_ms > kResponseIdleMs) session_.give_up();
  }

  Result<void> send_the_rest() {
    Deadline deadline = Deadline::in_ms(kLastWriteMs);
    if (app_.open()) (void)app_.flush();
    while (cloudboard_.open() && cloudboard_.wants_write()) {
      TIE_CHECK_OK(os::wait_writable(cloudboard_.fd(), deadline));
      TIE_CHECK_OK(cloudboard_.flush());
    }
    return {};
  }

  FrameLink cloudboard_, app_, keys_;
  os::Fd store_, spend_;
  Session session_;
  std::array<pollfd, kSources> polled_{};
  int64_t last_event_ms_ = monotonic_ms();
};

}  // namespace

Result<Connections> connect_warm(os::Fd cloudboard, const std::string& app_socket, const std::string& decap_socket,
                                 const std::string& spend_socket) {
  Deadline deadline = Deadline::in_ms(kStartTimeoutMs);
  Connections out{.cloudboard = std::move(cloudboard)};
  TIE_TRY(out.app, os::connect_unix(app_socket, deadline));
  v1::ToApp warmup;
  warmup.mutable_warmup();
  TIE_CHECK_OK(os::send_message(out.app.get(), warmup, deadline));
  TIE_TRY(out.keys, os::connect_unix(decap_socket, deadline));
  if (!spend_socket.empty()) {
    TIE_TRY(out.spend, os::connect_unix(spend_socket, deadline));
  }
  TIE_TRY(auto reply, os::receive_message<v1::FromApp>(out.app.get(), kMaxFrameBytes, deadline));
  if (!reply.message.has_ready()) return fail(Code::kFailedPrecondition, "the app's first word is not Ready");
  return out;
}

Result<void> announce(int cloudboard, int pidfd) {
  v1::FromHelper warm;
  warm.mutable_warm();
  return os::send_message(cloudboard, warm, Deadline::in_ms(kStartTimeoutMs), std::array{pidfd});
}

Result<void> serve(Connections connections, TokenVerifier verifier) {
  Loop loop(std::move(connections), std::move(verifier));
  return loop.run();
}

}  // namespace tie::request::jobhelper
