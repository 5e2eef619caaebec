// Question and answer over one framed connection of a small daemon (workload_servicesd): questions go out in order,
// answers come back in order. Connects when first needed and again after a loss; a question on a connection that turns
// out to be stale is asked once more. Belongs to the event loop's thread.
#pragma once
#include <sys/epoll.h>

#include <deque>
#include <functional>
#include <string>

#include "request/cloudboardd/event_loop.h"
#include "request/frame_link/frame_link.h"

namespace tie::request::cloudboard {

template <typename Question, typename Answer>
class FramedCaller {
 public:
  using Done = std::move_only_function<void(Result<Answer>)>;

  FramedCaller(EventLoop& loop, std::string socket, int64_t timeout_ms)
      : loop_(loop), socket_(std::move(socket)), timeout_ms_(timeout_ms) {}
  ~FramedCaller() { disconnect(); }

  // kNotReady when the daemon cannot be reached, kDeadline when it does not answer.
  void ask(Question question, Done done) {
    if (waiting_.size() >= kMaxWaiting)
      return done(fail(Code::kOverloaded, "The keys service is busy; try again shortly."));
    waiting_.push_back({std::move(question), std::move(done), monotonic_ms() + timeout_ms_, false});
    if (link_.open()) return send(waiting_.back());
    if (!connect()) fail_all(Code::kNotReady);
  }

  void sweep() {
    if (!waiting_.empty() && waiting_.front().deadline_ms <= monotonic_ms()) {
      disconnect();  // later answers could not be told apart
      fail_all(Code::kDeadline);
    }
  }

 private:
  static constexpr size_t kMaxWaiting = 1024;
  static constexpr FrameLimits kLimits{.max_frame_bytes = 1 << 20, .max_queued_bytes = 4 << 20};
  struct Call {
    Question question;
    Done done;
    int64_t deadline_ms;
    bool asked_again;
  };

  bool connect() {
    auto fd = os::connect_unix(socket_, Deadline::in_ms(0));
    if (!fd) return false;
    link_ = FrameLink(std::move(*fd), kLimits);
    auto id = loop_.watch(link_.fd(), EPOLLIN, [this](uint32_t events) { on_events(events); });
    if (!id) return false;
    watch_id_ = *id;
    for (Call& call : waiting_) send(call);
    return true;
  }

  void disconnect() {
    if (watch_id_ != 0) loop_.unwatch(std::exchange(watch_id_, 0));
    link_.close();
    link_ = FrameLink();
  }

  void send(Call& call) {
    // A failed send shows as a closed connection in on_events; nothing else is to be done here.
    (void)send_message(link_, call.question);
    if (watch_id_ != 0) loop_.change(watch_id_, EPOLLIN | (link_.wants_write() ? static_cast<uint32_t>(EPOLLOUT) : 0u));
  }

  void on_events(uint32_t events) {
    if ((events & EPOLLOUT) != 0) {
      (void)link_.flush();
      loop_.change(watch_id_, EPOLLIN | (link_.wants_write() ? static_cast<uint32_t>(EPOLLOUT) : 0u));
    }
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
    for (;;) {
      auto frame = link_.next();
      if (!frame) return lost();
      if (!*frame) return;
      Answer answer;
      if (!parse_message(**frame, answer) || waiting_.empty()) return lost();
      Call call = std::move(waiting_.front());
      waiting_.pop_front();
      call.done(std::move(answer));
      if (!link_.open()) return;
    }
  }

  void lost() {
    disconnect();
    std::deque<Call> again;
    std::deque<Call> failed;
    for (Call& call : waiting_) (std::exchange(call.asked_again, true) ? failed : again).push_back(std::move(call));
    waiting_ = std::move(again);
    for (Call& call : failed) call.done(fail(Code::kNotReady, "The keys service is not available; try again shortly."));
    if (!waiting_.empty() && !link_.open() && !connect()) fail_all(Code::kNotReady);
  }

  void fail_all(Code code) {
    std::deque<Call> calls = std::move(waiting_);
    waiting_.clear();
    for (Call& call : calls) call.done(fail(code, "The keys service is not available; try again shortly."));
  }

  EventLoop& loop_;
  std::string socket_;
  int64_t timeout_ms_;
  FrameLink link_;
  EventLoop::Id watch_id_ = 0;
  std::deque<Call> waiting_;
};

}  // namespace tie::request::cloudboard
