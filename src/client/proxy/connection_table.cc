#include "client/proxy/connection_table.h"

#include <sys/socket.h>

namespace tie::client {

uint64_t ConnectionTable::arrive() {
  std::lock_guard lock(mutex_);
  return next_++;
}

bool ConnectionTable::enter(Place& place) {
  std::lock_guard lock(mutex_);
  if (taken_ >= limit_ && waiting_.empty()) return false;
  ++taken_;
  place.waiting = place.arrival;
  waiting_[place.waiting] = &place;
  if (taken_ > limit_) {
    Place& oldest = *waiting_.begin()->second;
    stop_waiting(oldest);
    oldest.sent_away = true;
    ::shutdown(oldest.socket, SHUT_RDWR);  // wakes its thread
    --taken_;
  }
  return true;
}

void ConnectionTable::wait(Place& place) {
  std::lock_guard lock(mutex_);
  if (place.sent_away || place.waiting != 0) return;
  place.waiting = next_++;
  waiting_[place.waiting] = &place;
}

bool ConnectionTable::serve(Place& place) {
  std::lock_guard lock(mutex_);
  stop_waiting(place);
  return !place.sent_away;
}

void ConnectionTable::leave(Place& place) {
  std::lock_guard lock(mutex_);
  stop_waiting(place);
  if (!place.sent_away) --taken_;
}

size_t ConnectionTable::being_served() {
  std::lock_guard lock(mutex_);
  return taken_ - waiting_.size();
}

void ConnectionTable::stop_waiting(Place& place) {
  if (place.waiting != 0) waiting_.erase(place.waiting);
  place.waiting = 0;
}

}  // namespace tie::client
