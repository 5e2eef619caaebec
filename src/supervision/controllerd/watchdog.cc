#include "supervision/controllerd/watchdog.h"

#include <chrono>

namespace tie::controller {
namespace {

constexpr auto kLook = std::chrono::milliseconds(200);

}  // namespace

Watchdog::Guard::Guard(Watchdog& dog, grpc::ClientContext& context, int64_t silence_limit_ms)
    : dog_(dog), context_(context), limit_ms_(silence_limit_ms), heard_ms_(monotonic_ms()) {
  std::lock_guard lock(dog_.mutex_);
  place_ = dog_.guards_.insert(dog_.guards_.end(), this);
  if (dog_.stopped_) context_.TryCancel();
}

Watchdog::Guard::~Guard() {
  std::lock_guard lock(dog_.mutex_);
  dog_.guards_.erase(place_);
}

void Watchdog::Guard::heard() {
  std::lock_guard lock(dog_.mutex_);
  heard_ms_ = monotonic_ms();
}

Watchdog::Watchdog() : thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  stop();
  thread_.join();
}

void Watchdog::stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  for (Guard* guard : guards_) guard->context_.TryCancel();
  changed_.notify_all();
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    int64_t now = monotonic_ms();
    for (Guard* guard : guards_)
      if (now - guard->heard_ms_ > guard->limit_ms_) guard->context_.TryCancel();
    changed_.wait_for(lock, kLook, [this] { return stopped_; });
  }
}

}  // namespace tie::controller
