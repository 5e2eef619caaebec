// Tells cloudboardd which keys exist: the whole set, whenever it changes and whenever cloudboardd was started anew, for
// ever. Threads: run() on one thread of its own; stop() from any. Source: proto/cloudboard_control.proto, PublishKeys.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "keys/workload_servicesd/key_ring.h"

namespace tie::wsd {

class Publisher {
 public:
  // lost: called for each key whose replay record cloudboardd could not restore.
  Publisher(const std::string& control_socket, KeyRing& ring, std::function<void(const crypto::Digest&)> lost);
  ~Publisher();
  void run();
  void stop() { stopping_ = true; }

 private:
  struct Link;
  bool publish(const KeyRing::Snapshot& snapshot);
  KeyRing& ring_;
  const std::function<void(const crypto::Digest&)> lost_;
  const std::unique_ptr<Link> link_;
  const std::string boot_id_;
  std::atomic<bool> stopping_ = false;
  uint64_t logged_version_ = 0;
  std::set<std::string> used_;  // keys that cloudboardd has accepted: without a replay record they are lost, not new
};

}  // namespace tie::wsd
