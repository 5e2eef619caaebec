// The next request's key, drawn and sealed to the node while nobody waits: a quarter of a millisecond of a first token.
// Each serves one request, to the node key that it was drawn for, and is no older than kDrawnAheadMs: then it is wiped,
// by a thread of this object that starts with the first one drawn, so that an idle session holds no key. Private to
// this folder. Any thread.
#pragma once
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "client/session/limits.h"
#include "crypto/request_seal.h"

namespace tie::client {

class DrawnAhead {
 public:
  explicit DrawnAhead(std::function<int64_t()> now_ms = monotonic_ms, int64_t keep_ms = kDrawnAheadMs)
      : now_ms_(std::move(now_ms)), keep_ms_(keep_ms) {}
  ~DrawnAhead();

  // The one drawn for this key, if it may still be used; else a new one.
  Result<crypto::SealedRequest> take(const crypto::RequestKey& to);
  // After a request has ended. The first one draws nothing: most sessions of a command line ask once.
  void draw(const crypto::RequestKey& to);
  bool has_one_for(const crypto::RequestKey& to);
  // Of any key and age.
  bool holds_one();

 private:
  bool usable(const crypto::RequestKey& to) const;
  void wipe_idle();

  const std::function<int64_t()> now_ms_;
  const int64_t keep_ms_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread wiper_;
  std::optional<crypto::SealedRequest> next_;
  Bytes key_id_;  // of next_
  int64_t drawn_ms_ = 0;
  uint64_t taken_ = 0;
};

}  // namespace tie::client
