// The next request's key, drawn and sealed to the node while nobody waits: a quarter of a millisecond of a first token.
// Each serves one request, to the node key that it was drawn for, and is no older than kDrawnAheadMs. Private to this
// folder. Any thread.
#pragma once
#include <functional>
#include <mutex>
#include <optional>

#include "base/clock.h"
#include "crypto/request_seal.h"

namespace tie::client {

class DrawnAhead {
 public:
  explicit DrawnAhead(std::function<int64_t()> now_ms = monotonic_ms) : now_ms_(std::move(now_ms)) {}

  // The one drawn for this key, if it may still be used; else a new one.
  Result<crypto::SealedRequest> take(const crypto::RequestKey& to);
  // After a request has ended. The first one draws nothing: most sessions of a command line ask once.
  void draw(const crypto::RequestKey& to);
  bool has_one_for(const crypto::RequestKey& to);

 private:
  bool usable(const crypto::RequestKey& to) const;

  const std::function<int64_t()> now_ms_;
  std::mutex mutex_;
  std::optional<crypto::SealedRequest> next_;
  Bytes key_id_;  // of next_
  int64_t drawn_ms_ = 0;
  uint64_t taken_ = 0;
};

}  // namespace tie::client
