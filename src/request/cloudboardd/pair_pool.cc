#include "request/cloudboardd/pair_pool.h"

#include <algorithm>

#include "os/log.h"
#include "request/cloudboardd/limits.h"

namespace tie::request::cloudboard {

void PairPool::start() {
  keep_warm_ = true;
  retry_at_ms_ = 0;
  fill();
}

PairPool::Ticket PairPool::take(Taker taker) {
  Ticket ticket = next_ticket_++;
  if (!warm_.empty()) {
    auto helper = std::move(warm_.front());
    warm_.pop_front();
    helper->set_owner(nullptr);
    if (warm_.empty()) {
      loop_.post([this] { fill(); });  // not before this request has what it needs
    } else {
      refill_at_ms_ = monotonic_ms() + kRefillDelayMs;
      loop_.after_ms(kRefillDelayMs, [this] { fill(); });
    }
    taker(std::move(helper));
    return ticket;
  }
  waiters_.push_back({ticket, std::move(taker), monotonic_ms() + kWarmWaitMs, kHelperAttempts});
  fill();
  return ticket;
}

void PairPool::refill() {
  loop_.after_ms(kAnswerPassesMs, [this] {
    refill_at_ms_ = 0;
    fill();
  });
}

void PairPool::give_up(Ticket ticket) {
  std::erase_if(waiters_, [&](const Waiter& waiter) { return waiter.ticket == ticket; });
}

void PairPool::restart() {
  for (auto& helper : warm_) helper->set_owner(nullptr);
  for (auto& helper : starting_) helper->set_owner(nullptr);
  warm_.clear();
  starting_.clear();
  start();
}

void PairPool::sweep() {
  int64_t now_ms = monotonic_ms();
  while (!waiters_.empty() && waiters_.front().deadline_ms <= now_ms)
    refuse_front("No request process became ready in time; try again shortly.");
  std::vector<std::shared_ptr<Helper>> late;
  for (auto& helper : starting_)
    if (now_ms - helper->connected_ms() > kWarmWaitMs) late.push_back(helper);
  for (auto& helper : late) {
    helper->set_owner(nullptr);
    remove(*helper);
    helper->close();
    start_failed();
  }
  fill();
}

void PairPool::fill() {
  if (waiters_.empty() && !warm_.empty() && monotonic_ms() < refill_at_ms_) return;
  size_t wanted = (keep_warm_ ? prewarmed_ : 0) + waiters_.size();
  while (warm_.size() + starting_.size() < wanted && starting_.size() < std::max(kMaxStartingHelpers, prewarmed_)) {
    if (waiters_.empty() && monotonic_ms() < retry_at_ms_) break;  // only a request justifies hurry after a failure
    if (!start_one()) break;
  }
}

bool PairPool::start_one() {
  auto helper = Helper::connect(loop_, socket_, this);
  if (!helper) {
    start_failed();
    return false;
  }
  starting_.push_back(std::move(*helper));
  return true;
}

// Counts against every waiting request, and slows down the refilling until one start succeeds.
void PairPool::start_failed() {
  for (Waiter& waiter : waiters_) --waiter.attempts_left;
  while (!waiters_.empty() && waiters_.front().attempts_left <= 0)
    refuse_front("No request process could be started; try again shortly.");
  int64_t delay_ms = std::min(kRestartBackoffMs << std::min(failures_++, 10), kMaxRestartBackoffMs);
  retry_at_ms_ = monotonic_ms() + delay_ms;
  if (std::exchange(retry_planned_, true)) return;
  loop_.after_ms(delay_ms, [this] {
    retry_planned_ = false;
    fill();
  });
}

void PairPool::refuse_front(const char* why) {
  Waiter waiter = std::move(waiters_.front());
  waiters_.pop_front();
  waiter.taker(fail(Code::kNotReady, why));
}

std::shared_ptr<Helper> PairPool::remove(Helper& helper) {
  auto is_it = [&](const std::shared_ptr<Helper>& held) { return held.get() == &helper; };
  std::shared_ptr<Helper> out;
  if (auto found = std::find_if(starting_.begin(), starting_.end(), is_it); found != starting_.end()) {
    out = std::move(*found);
    starting_.erase(found);
  } else if (auto ready = std::find_if(warm_.begin(), warm_.end(), is_it); ready != warm_.end()) {
    out = std::move(*ready);
    warm_.erase(ready);
  }
  return out;
}

void PairPool::helper_warm(Helper& helper) {
  auto held = remove(helper);
  failures_ = 0;
  retry_at_ms_ = 0;
  if (waiters_.empty()) {
    warm_.push_back(std::move(held));
    return;
  }
  Waiter waiter = std::move(waiters_.front());
  waiters_.pop_front();
  held->set_owner(nullptr);
  waiter.taker(std::move(held));
  fill();
}

// Before Start there is nothing it may say.
void PairPool::helper_said(Helper& helper, v1::FromHelper&) {
  helper.set_owner(nullptr);
  helper.close();
  helper_lost(helper);
}

void PairPool::helper_lost(Helper& helper) {
  bool was_warm = helper.warm();
  auto held = remove(helper);
  if (!held) return;
  TIE_LOG("cloudboardd", "a waiting request process went away; was warm: {}", static_cast<int>(was_warm));
  if (was_warm) return fill();
  start_failed();
  fill();
}

}  // namespace tie::request::cloudboard
