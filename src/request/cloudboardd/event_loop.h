// One thread that watches descriptors, runs timers and takes tasks from other threads: all of cloudboardd's own state
// lives on it, so that state needs no locks. post() may be called from any thread, everything else on the loop's thread
// only (or before run()). Handlers must not block.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "os/fd.h"

namespace tie::request::cloudboard {

class EventLoop {
 public:
  using Task = std::move_only_function<void()>;
  using Handler = std::move_only_function<void(uint32_t epoll_events)>;
  using Id = uint64_t;

  static Result<std::unique_ptr<EventLoop>> create();

  // Runs until stop(), then lets go of every handler, timer and task. Once.
  void run();
  void stop();
  void post(Task task);

  // events: EPOLLIN | EPOLLOUT; hang-ups are always told. The descriptor must stay open until unwatch().
  Result<Id> watch(int fd, uint32_t events, Handler handler);
  void change(Id id, uint32_t events);
  void unwatch(Id id);  // its handler is not called any more, even for events already fetched

  Id after_ms(int64_t delay_ms, Task task);
  void every_ms(int64_t period_ms, std::function<void()> task);
  void cancel(Id timer);

 private:
  struct Watch {
    int fd;
    uint32_t events;
    Handler handler;
  };
  EventLoop(os::Fd epoll, os::Fd wake) : epoll_(std::move(epoll)), wake_(std::move(wake)) {}
  void run_tasks();
  void drop_everything();
  void run_timers();
  int wait_ms() const;

  os::Fd epoll_, wake_;
  std::mutex mutex_;
  std::vector<Task> tasks_;
  std::atomic<bool> stopped_ = false;
  std::unordered_map<Id, std::shared_ptr<Watch>> watches_;
  std::multimap<int64_t, std::pair<Id, Task>> timers_;
  Id next_id_ = 1;
};

}  // namespace tie::request::cloudboard
