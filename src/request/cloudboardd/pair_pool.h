// Prewarmed pairs: helpers that are connected, and whose app is warm, before a request needs them. Each serves one
// request and is replaced when that has answered. Requests beyond the pool wait for helpers that are started for them,
// a bounded number at a time, in order. Belongs to the event loop's thread and outlives its last run(). Source: spec,
// "Per-request isolation".
#pragma once
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "request/cloudboardd/helper.h"

namespace tie::request::cloudboard {

class PairPool : private HelperOwner {
 public:
  using Taker = std::move_only_function<void(Result<std::shared_ptr<Helper>>)>;
  using Ticket = uint64_t;

  PairPool(EventLoop& loop, std::string socket, size_t prewarmed)
      : loop_(loop), socket_(std::move(socket)), prewarmed_(prewarmed) {}
  ~PairPool() override = default;

  // Begins to keep pairs warm, or tries again at once after failures: called when the node can serve. Until the first
  // call only requests start helpers, because their apps have no runtime to connect to.
  void start();
  // Gives a warm helper, at once when there is one. It is replaced when its request has answered, or kRefillDelayMs
  // later, because a start takes half the machine's time from a prompt that is being read; at once when no other is
  // warm. kNotReady after kHelperAttempts failed starts or kWarmWaitMs. Returns a ticket for give_up(); the taker is
  // not called after that.
  Ticket take(Taker taker);
  void give_up(Ticket ticket);
  // A request that took a helper has its first answer: replaced kAnswerPassesMs later, when the client has it, too.
  void refill();
  // Lets all waiting helpers go and starts new ones: they hold connections of an old runtime.
  void restart();
  void sweep();  // deadlines; called every kSweepMs
  size_t warm_count() const { return warm_.size(); }

 private:
  struct Waiter {
    Ticket ticket;
    Taker taker;
    int64_t deadline_ms;
    int attempts_left;
  };
  void helper_warm(Helper& helper) override;
  void helper_said(Helper& helper, v1::FromHelper&) override;
  void helper_lost(Helper& helper) override;
  void fill();
  bool start_one();
  void start_failed();
  void refuse_front(const char* why);
  std::shared_ptr<Helper> remove(Helper& helper);

  EventLoop& loop_;
  std::string socket_;
  size_t prewarmed_;
  std::deque<std::shared_ptr<Helper>> warm_;
  std::list<std::shared_ptr<Helper>> starting_;
  std::deque<Waiter> waiters_;
  Ticket next_ticket_ = 1;
  bool keep_warm_ = false;
  int failures_ = 0;  // in a row
  int64_t retry_at_ms_ = 0;
  int64_t refill_at_ms_ = 0;
  bool retry_planned_ = false;
};

}  // namespace tie::request::cloudboard
