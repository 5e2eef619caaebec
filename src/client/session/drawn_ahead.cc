#include "client/session/drawn_ahead.h"

#include <chrono>
#include <system_error>

namespace tie::client {

DrawnAhead::~DrawnAhead() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  if (wiper_.joinable()) wiper_.join();
}

bool DrawnAhead::usable(const crypto::RequestKey& to) const {
  return next_ && key_id_ == to.key_id && now_ms_() - drawn_ms_ <= keep_ms_;
}

bool DrawnAhead::has_one_for(const crypto::RequestKey& to) {
  std::lock_guard lock(mutex_);
  return usable(to);
}

bool DrawnAhead::holds_one() {
  std::lock_guard lock(mutex_);
  return next_.has_value();
}

Result<crypto::SealedRequest> DrawnAhead::take(const crypto::RequestKey& to) {
  {
    std::lock_guard lock(mutex_);
    ++taken_;
    bool good = usable(to);
    auto next = std::exchange(next_, std::nullopt);
    if (good) return std::move(*next);
  }
  return crypto::SealedRequest::create(to);
}

void DrawnAhead::draw(const crypto::RequestKey& to) {
  {
    std::lock_guard lock(mutex_);
    if (taken_ < 2 || usable(to)) return;
  }
  auto drawn = crypto::SealedRequest::create(to);
  if (!drawn) return;  // the next request says why
  {
    std::lock_guard lock(mutex_);
    try {
      if (!wiper_.joinable()) wiper_ = std::thread([this] { wipe_idle(); });
    } catch (const std::system_error&) {
      return;  // no key lies here that nobody would wipe
    }
    next_ = std::move(*drawn);
    key_id_ = to.key_id;
    drawn_ms_ = now_ms_();
  }
  changed_.notify_one();
}

void DrawnAhead::wipe_idle() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (!next_) {
      changed_.wait(lock);
      continue;
    }
    const int64_t left_ms = drawn_ms_ + keep_ms_ - now_ms_();
    if (left_ms < 0) {
      next_.reset();
    } else {
      changed_.wait_for(lock, std::chrono::milliseconds(left_ms + 1));
    }
  }
}

}  // namespace tie::client
