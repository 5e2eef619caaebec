#include "client/session/cancellation.h"

#include <chrono>

namespace tie::client {

void Cancellation::cancel() {
  std::lock_guard lock(mutex_);
  if (cancelled_) return;
  cancelled_ = true;
  if (hook_) hook_();
  woken_.notify_all();
}

bool Cancellation::cancelled() const {
  std::lock_guard lock(mutex_);
  return cancelled_;
}

bool Cancellation::sleep_ms(int64_t ms) {
  std::unique_lock lock(mutex_);
  return woken_.wait_for(lock, std::chrono::milliseconds(ms), [this] { return cancelled_; });
}

Cancellation::Hook::Hook(Cancellation& owner, std::function<void()> hook) : owner_(owner) {
  std::lock_guard lock(owner_.mutex_);
  if (owner_.cancelled_) hook();
  owner_.hook_ = std::move(hook);
}

Cancellation::Hook::~Hook() {
  std::lock_guard lock(owner_.mutex_);
  owner_.hook_ = nullptr;
}

}  // namespace tie::client
