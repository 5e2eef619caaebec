#include "supervision/gpuhealthd/poller.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace tie::gpuhealth {

struct Poller::Shared {
  std::shared_ptr<DeviceProvider> provider;
  PollerOptions options;
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  Result<std::vector<DeviceVerdict>> last = fail(Code::kNotReady, "no poll has completed yet");
  int64_t started_ms = monotonic_ms();
  int64_t completed_ms = 0;
  bool stopped = false;

  NodeVerdict verdict_locked() const {
    NodeVerdict out;
    out.provider = provider->name();
    out.age_ms = monotonic_ms() - (completed_ms != 0 ? completed_ms : started_ms);
    if (last) {
      out.devices = *last;
      out.health = last->empty() ? Health::kUnavailable : Health::kHealthy;
      for (const DeviceVerdict& device : *last) out.health = std::max(out.health, device.health);
    } else {
      out.devices.push_back({.name = out.provider, .health = Health::kUnavailable, .reason = last.error().message});
    }
    if (out.age_ms > options.hang_ms) {
      out.health = Health::kUnavailable;
      for (DeviceVerdict& device : out.devices) {
        device.health = Health::kUnavailable;
        device.reason = "the device query hangs";
      }
    }
    return out;
  }
};

bool same_verdict(const NodeVerdict& a, const NodeVerdict& b) {
  auto same = [](const DeviceVerdict& x, const DeviceVerdict& y) {
    return x.name == y.name && x.health == y.health && x.reason == y.reason;
  };
  return a.health == b.health &&
         std::equal(a.devices.begin(), a.devices.end(), b.devices.begin(), b.devices.end(), same);
}

Poller::Poller(std::shared_ptr<DeviceProvider> provider, PollerOptions options) : shared_(std::make_shared<Shared>()) {
  shared_->provider = std::move(provider);
  shared_->options = options;
  std::thread([shared = shared_] {
    for (;;) {
      auto polled = shared->provider->poll();
      std::unique_lock lock(shared->mutex);
      shared->last = std::move(polled);
      shared->completed_ms = monotonic_ms();
      shared->changed.notify_all();
      shared->changed.wait_for(lock, std::chrono::milliseconds(shared->options.interval_ms),
                               [&] { return shared->stopped; });
      if (shared->stopped) return;
    }
  }).detach();
}

Poller::~Poller() {
  stop();
}

void Poller::stop() {
  std::lock_guard lock(shared_->mutex);
  shared_->stopped = true;
  shared_->changed.notify_all();
}

NodeVerdict Poller::verdict() const {
  std::lock_guard lock(shared_->mutex);
  return shared_->verdict_locked();
}

NodeVerdict Poller::wait_change(const NodeVerdict& seen, Deadline deadline) const {
  std::unique_lock lock(shared_->mutex);
  for (;;) {
    NodeVerdict now = shared_->verdict_locked();
    if (!same_verdict(now, seen) || deadline.passed() || shared_->stopped) return now;
    // Ageing wakes nobody, so the wait is cut into pieces.
    int64_t piece = std::min<int64_t>(deadline.remaining_ms(), 200);
    shared_->changed.wait_for(lock, std::chrono::milliseconds(piece));
  }
}

void Poller::wait_first(Deadline deadline) const {
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait_for(lock, std::chrono::milliseconds(deadline.remaining_ms()),
                            [&] { return shared_->completed_ms != 0; });
}

}  // namespace tie::gpuhealth
