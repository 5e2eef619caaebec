// How many requests are in flight, and whether one more may begin. The count rises before any work for a request is
// done and falls when its Slot dies, which the owner keeps until the helper process has exited. Threads: any. Source:
// spec, "registers the node's availability".
#pragma once
#include <cstdint>
#include <functional>
#include <mutex>

#include "base/result.h"

namespace tie::request::cloudboard {

class Admission {
 public:
  class Slot {
   public:
    Slot() = default;
    explicit Slot(Admission* of) : of_(of) {}
    Slot(Slot&& other) noexcept : of_(std::exchange(other.of_, nullptr)) {}
    Slot& operator=(Slot&& other) noexcept {
      std::swap(of_, other.of_);
      return *this;
    }
    ~Slot() {
      if (of_ != nullptr) of_->leave();
    }

   private:
    Admission* of_ = nullptr;
  };

  struct Load {
    uint32_t limit = 0, in_flight = 0;
  };

  // changed: called after each change, on the thread that made it, without a lock held.
  explicit Admission(std::function<void(Load)> changed = nullptr) : changed_(std::move(changed)) {}

  void set_limit(uint32_t limit);
  Load load() const;
  // kNotReady at limit 0, kOverloaded at the limit.
  Result<Slot> enter();

 private:
  void leave();
  void tell(Load load) const {
    if (changed_) changed_(load);
  }
  std::function<void(Load)> changed_;
  mutable std::mutex mutex_;
  Load load_;
};

}  // namespace tie::request::cloudboard
