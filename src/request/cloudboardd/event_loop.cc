#include "request/cloudboardd/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/clock.h"

namespace tie::request::cloudboard {
namespace {
constexpr uint64_t kWakeId = 0;
}

Result<std::unique_ptr<EventLoop>> EventLoop::create() {
  os::Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  os::Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll || !wake) return fail_errno("making an event loop", errno);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWakeId}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) return fail_errno("epoll", errno);
  return std::unique_ptr<EventLoop>(new EventLoop(std::move(epoll), std::move(wake)));
}

void EventLoop::run() {
  std::array<epoll_event, 64> events;
  while (!stopped_) {
    int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), wait_ms());
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      if (event.data.u64 == kWakeId) {
        uint64_t value;
        (void)!::read(wake_.get(), &value, sizeof value);
        continue;
      }
      auto found = watches_.find(event.data.u64);
      if (found == watches_.end()) continue;
      std::shared_ptr<Watch> keep = found->second;
      keep->handler(event.events);
    }
    run_tasks();
    run_timers();
  }
  drop_everything();
}

// What handlers and tasks hold may be older than the loop: it is let go of while all of that still lives.
void EventLoop::drop_everything() {
  for (;;) {
    std::vector<Task> tasks;
    {
      std::lock_guard lock(mutex_);
      tasks.swap(tasks_);
    }
    auto watches = std::exchange(watches_, {});
    auto timers = std::exchange(timers_, {});
    if (tasks.empty() && watches.empty() && timers.empty()) return;
  }
}

void EventLoop::stop() {
  stopped_ = true;
  uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

void EventLoop::post(Task task) {
  bool wake;
  {
    std::lock_guard lock(mutex_);
    wake = tasks_.empty();
    tasks_.push_back(std::move(task));
  }
  uint64_t one = 1;
  if (wake) (void)!::write(wake_.get(), &one, sizeof one);
}

void EventLoop::run_tasks() {
  std::vector<Task> tasks;
  {
    std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
  }
  for (Task& task : tasks) task();
}

void EventLoop::run_timers() {
  int64_t now_ms = monotonic_ms();
  while (!timers_.empty() && timers_.begin()->first <= now_ms) {
    auto node = timers_.extract(timers_.begin());
    node.mapped().second();
  }
}

int EventLoop::wait_ms() const {
  if (timers_.empty()) return -1;
  return static_cast<int>(std::clamp<int64_t>(timers_.begin()->first - monotonic_ms(), 0, 60'000));
}

Result<EventLoop::Id> EventLoop::watch(int fd, uint32_t events, Handler handler) {
  Id id = next_id_++;
  epoll_event event{.events = events, .data = {.u64 = id}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return fail_errno("epoll", errno);
  watches_.emplace(id, std::make_shared<Watch>(Watch{fd, events, std::move(handler)}));
  return id;
}

void EventLoop::change(Id id, uint32_t events) {
  auto found = watches_.find(id);
  if (found == watches_.end() || found->second->events == events) return;
  found->second->events = events;
  epoll_event event{.events = events, .data = {.u64 = id}};
  tie_check(::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, found->second->fd, &event) == 0, "a watched descriptor is open");
}

void EventLoop::unwatch(Id id) {
  auto found = watches_.find(id);
  if (found == watches_.end()) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second->fd, nullptr);
  watches_.erase(found);
}

EventLoop::Id EventLoop::after_ms(int64_t delay_ms, Task task) {
  Id id = next_id_++;
  timers_.emplace(monotonic_ms() + delay_ms, std::pair{id, std::move(task)});
  return id;
}

void EventLoop::every_ms(int64_t period_ms, std::function<void()> task) {
  after_ms(period_ms, [this, period_ms, task = std::move(task)]() mutable {
    task();
    every_ms(period_ms, std::move(task));
  });
}

void EventLoop::cancel(Id timer) {
  auto found =
      std::find_if(timers_.begin(), timers_.end(), [&](const auto& entry) { return entry.second.first == timer; });
  if (found != timers_.end()) timers_.erase(found);
}

}  // namespace tie::request::cloudboard
