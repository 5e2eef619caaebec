// How a person or a dropped connection stops a running answer from another thread. One object per answer, shared by the
// one who waits and the one who may cancel; every function may be called from any thread. Never un-cancelled.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>

namespace tie::client {

class Cancellation {
 public:
  Cancellation() = default;
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  // Wakes sleepers and runs the hook, once. The hook must not block.
  void cancel();
  bool cancelled() const;
  // Sleeps; true as soon as it is cancelled.
  bool sleep_ms(int64_t ms);

  // While this object lives, cancel() also calls `hook`; at once when it was cancelled before. One hook at a time.
  class Hook {
   public:
    Hook(Cancellation& owner, std::function<void()> hook);
    ~Hook();
    Hook(const Hook&) = delete;
    Hook& operator=(const Hook&) = delete;

   private:
    Cancellation& owner_;
  };

 private:
  mutable std::mutex mutex_;
  std::condition_variable woken_;
  std::function<void()> hook_;
  bool cancelled_ = false;
};

}  // namespace tie::client
