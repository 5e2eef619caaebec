#include "client/session/drawn_ahead.h"

#include "client/session/limits.h"

namespace tie::client {

bool DrawnAhead::usable(const crypto::RequestKey& to) const {
  return next_ && key_id_ == to.key_id && now_ms_() - drawn_ms_ <= kDrawnAheadMs;
}

bool DrawnAhead::has_one_for(const crypto::RequestKey& to) {
  std::lock_guard lock(mutex_);
  return usable(to);
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
  std::lock_guard lock(mutex_);
  next_ = std::move(*drawn);
  key_id_ = to.key_id;
  drawn_ms_ = now_ms_();
}

}  // namespace tie::client
