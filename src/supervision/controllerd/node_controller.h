// The shell around the core: an event loop, the peers' threads, the carrying out of commands. One per tie-controllerd.
// Threads: post(), snapshot() and wait() any. start() and stop() from the owner's thread; after stop() nothing runs any
// more.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "supervision/controllerd/core.h"
#include "supervision/controllerd/peers.h"

namespace tie::controller {

struct ProbeTarget {
  std::string model;
  std::string socket;
};

struct NodeOptions {
  CoreOptions core;  // `runtimes` is set from `probes`
  PeerTiming timing;
  std::string node_id;
  std::string cloudboard_socket, gpuhealth_socket, owner_socket;
  std::vector<ProbeTarget> probes;
  std::function<void()> on_first_ready = [] {};  // called once, on the loop's thread
};

class NodeController {
 public:
  explicit NodeController(NodeOptions options);
  ~NodeController();
  void start();
  void stop();

  // Queues an event; `wait_handled` returns once the core has seen it.
  void post(Event event);
  void post_and_wait(Event event, Deadline deadline);
  // A copy of the core as of the last event.
  Core snapshot() const;
  // Asks cloudboardd what is in flight, so that the next snapshot is true at this moment. False when it does not
  // answer.
  bool refresh_load(int64_t limit_ms);
  const NodeOptions& options() const { return options_; }
  // Waits until `holds(core)`, at most until the deadline; `version` grows with each event. Returns whether it held.
  template <typename Predicate>
  bool wait(Predicate holds, Deadline deadline) const {
    for (uint64_t seen = 0;;) {
      auto [core, version] = snapshot_after(seen, deadline);
      if (holds(core)) return true;
      if (deadline.passed() || version == seen) return false;
      seen = version;
    }
  }
  std::pair<Core, uint64_t> snapshot_after(uint64_t seen_version, Deadline deadline) const;

 private:
  struct State;
  void loop();
  void note_phase(Phase before);
  void carry_out(const Command& command);

  NodeOptions options_;
  std::unique_ptr<State> state_;
};

}  // namespace tie::controller
