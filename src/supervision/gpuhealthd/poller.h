// Polls a provider on a thread of its own and keeps the last verdict. A driver call that hangs cannot be ended, only
// noticed: when no poll has completed for hang_ms the verdict is unavailable, and healthy again once polls complete.
// Threads: verdict() and wait_change() any. stop() returns at once even when the polling thread hangs; that thread then
// keeps the shared state alive until it returns.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "supervision/gpuhealthd/device.h"

namespace tie::gpuhealth {

struct PollerOptions {
  int64_t interval_ms = 1'000;
  int64_t hang_ms = 5'000;
};

struct NodeVerdict {
  Health health = Health::kUnavailable;  // the worst of the devices
  std::string provider;
  std::vector<DeviceVerdict> devices;
  int64_t age_ms = 0;  // since the last completed poll
};
// What a watcher wants to hear about: health or a reason changed (not a degree more or less).
bool same_verdict(const NodeVerdict& a, const NodeVerdict& b);

class Poller {
 public:
  Poller(std::shared_ptr<DeviceProvider> provider, PollerOptions options);
  ~Poller();
  NodeVerdict verdict() const;
  // Returns when the verdict differs from `seen`, or at the deadline, with the present one.
  NodeVerdict wait_change(const NodeVerdict& seen, Deadline deadline) const;
  // After the first completed poll or at the deadline.
  void wait_first(Deadline deadline) const;
  void stop();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace tie::gpuhealth
