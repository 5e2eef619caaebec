#include "request/cloudboardd/helper.h"

#include <sys/epoll.h>

#include <csignal>

#include "os/log.h"
#include "os/process.h"
#include "request/cloudboardd/limits.h"

namespace tie::request::cloudboard {
namespace {
constexpr FrameLimits kLimits{
    .max_frame_bytes = kMaxHelperFrameBytes, .max_queued_bytes = kMaxHelperQueueBytes, .max_fds = 1};
}

Helper::Helper(EventLoop& loop, FrameLink link, HelperOwner* owner)
    : loop_(loop), link_(std::move(link)), owner_(owner), connected_ms_(monotonic_ms()) {}

Result<std::shared_ptr<Helper>> Helper::connect(EventLoop& loop, const std::string& socket, HelperOwner* owner) {
  TIE_TRY(os::Fd fd, os::connect_unix(socket, Deadline::in_ms(0)));
  std::shared_ptr<Helper> helper(new Helper(loop, FrameLink(std::move(fd), kLimits), owner));
  TIE_CHECK_OK(helper->watch());
  return helper;
}

Helper::~Helper() {
  close();
}

Result<void> Helper::watch() {
  uint32_t events = EPOLLIN | (link_.wants_write() ? static_cast<uint32_t>(EPOLLOUT) : 0u);
  TIE_TRY(watch_id_, loop_.watch(link_.fd(), events, [weak = weak_from_this()](uint32_t got) {
    if (auto self = weak.lock()) self->on_events(got);
  }));
  return {};
}

void Helper::unwatch() {
  if (watch_id_ != 0) loop_.unwatch(std::exchange(watch_id_, 0));
}

void Helper::close() {
  unwatch();
  link_.close();
}

void Helper::send(const v1::ToHelper& message, std::span<const int> fds) {
  if (!link_.open() || !send_message(link_, message, fds)) return lose();
  if (link_.wants_write()) want_write();
}

void Helper::want_write() {
  uint32_t events =
      (paused_ ? 0u : static_cast<uint32_t>(EPOLLIN)) | (link_.wants_write() ? static_cast<uint32_t>(EPOLLOUT) : 0u);
  if (watch_id_ != 0)
    loop_.change(watch_id_, events);
  else if (events != 0 && link_.open() && !watch())
    lose();
}

// A paused helper that has nothing to take either is not watched at all: its hang-up would wake the loop without end.
void Helper::pause_reading(bool pause) {
  if (paused_ == pause || !link_.open()) return;
  paused_ = pause;
  if (pause && !link_.wants_write()) return unwatch();
  want_write();
  // What was read with an earlier frame wakes nobody. From the loop: the owner is in the middle of something.
  if (!pause && link_.holds_frame())
    loop_.post([weak = weak_from_this()] {
      if (auto self = weak.lock()) self->read_all();
    });
}

void Helper::on_events(uint32_t events) {
  auto keep = shared_from_this();
  if ((events & EPOLLOUT) != 0) {
    if (!link_.flush()) return lose();
    want_write();
    if (owner_ != nullptr) owner_->helper_took_input(*this);
  }
  if (paused_ && (events & (EPOLLHUP | EPOLLERR)) != 0)
    return unwatch();  // what it said before is read when the client catches up
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && !paused_) read_all();
}

void Helper::read_all() {
  while (link_.open() && !paused_) {
    auto frame = link_.next();
    if (!frame) return lose();
    if (!*frame) return;
    if (!on_frame(**frame)) return lose();
  }
}

Result<void> Helper::on_frame(os::Frame& frame) {
  v1::FromHelper message;
  TIE_CHECK_OK(parse_message(frame, message));
  if (message.has_warm() != !warm()) return fail(Code::kFailedPrecondition, "warm comes once, first");
  if (!message.has_warm()) {
    if (!frame.fds.empty()) return fail(Code::kCorrupt, "only warm carries a descriptor");
    if (owner_ != nullptr) owner_->helper_said(*this, message);
    return {};
  }
  if (frame.fds.empty()) return fail(Code::kCorrupt, "warm carries the helper's pidfd");
  pidfd_ = std::move(frame.fds.front());
  if (owner_ != nullptr) owner_->helper_warm(*this);
  return {};
}

void Helper::lose() {
  close();
  // From the loop: the owner may be in the middle of something that holds us.
  loop_.post([self = shared_from_this()] {
    if (self->owner_ != nullptr) std::exchange(self->owner_, nullptr)->helper_lost(*self);
  });
}

namespace {

struct Dying {
  EventLoop& loop;
  os::Fd pidfd;
  Admission::Slot slot;
  EventLoop::Id watch = 0, timer = 0;
};

void kill_after(const std::shared_ptr<Dying>& dying, int64_t grace_ms) {
  dying->timer = dying->loop.after_ms(grace_ms, [weak = std::weak_ptr(dying), grace_ms] {
    auto dying = weak.lock();
    if (!dying) return;
    auto killed = os::pidfd_signal(dying->pidfd.get(), SIGKILL);
    TIE_LOG("cloudboardd", "a helper did not exit in time and was killed: {}",
            killed ? Code::kOk : killed.error().code);
    kill_after(dying, grace_ms);
  });
}

}  // namespace

void reap(EventLoop& loop, std::shared_ptr<Helper> helper, Admission::Slot slot, int64_t grace_ms) {
  helper->set_owner(nullptr);
  helper->close();
  auto dying = std::make_shared<Dying>(Dying{loop, helper->take_pidfd(), std::move(slot)});
  if (!dying->pidfd) return;
  // A pidfd becomes readable when its process has exited; the handler keeps `dying` until then.
  auto watched = loop.watch(dying->pidfd.get(), EPOLLIN, [dying](uint32_t) {
    dying->loop.cancel(dying->timer);
    dying->loop.unwatch(dying->watch);
  });
  if (!watched) return;
  dying->watch = *watched;
  kill_after(dying, grace_ms);
}

}  // namespace tie::request::cloudboard
