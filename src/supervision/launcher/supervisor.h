// Keeps a node's processes running: starts daemons when what they need is ready, restarts what dies, starts one
// sandboxed program for each connection on a per-request socket (Accept=yes), collects logs, and stops everything in
// order. One thread, one loop; every wait has a deadline. Source: ARCHITECTURE.md, "Two profiles"; the states are those
// of systemd's services, reduced to what the node needs.
#pragma once
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "supervision/launcher/instance.h"
#include "supervision/launcher/profiles.h"

namespace tie::launcher {

constexpr int64_t kFirstBackoffMs = 100;
constexpr int64_t kMaxBackoffMs = 5000;
constexpr int64_t kStableAfterMs = 10'000;  // a daemon that ran this long starts again without the grown back-off
constexpr int64_t kFailsEarlyMs = 1000;
constexpr int kMaxStartFailures = 4;    // exits before the first readiness, then the node's start is given up
constexpr int64_t kStopStepMs = 5'000;  // for one daemon to end after SIGTERM

struct SupervisorOptions {
  std::string run;
  uint32_t max_instances = 64;
  int64_t startup_timeout_ms = 60'000;
  int64_t drain_timeout_ms = 20'000;
  bool raw_logs = false;
  std::vector<std::string> stop_first;                   // units that drain before the others stop
  std::function<void(const std::string&)> progress;      // a line for the person who waits
  std::function<void(const std::string&)> write_status;  // the status document, at each change
};

class Supervisor {
 public:
  Supervisor(os::SandboxLauncher& launcher, std::vector<Unit> units, SupervisorOptions options);
  ~Supervisor();

  // Runs until `stop_fd` is readable, then stops everything. Errors: the node did not become ready in time, or a daemon
  // cannot start; everything has been stopped by then.
  Result<void> run(int stop_fd);

 private:
  enum class State { kWaiting, kStarting, kReady, kBackoff, kStopped };

  struct Slot {
    Unit unit;
    State state = State::kWaiting;
    LogFile log;
    os::Fd listener;                // kPerRequest
    std::list<Instance> instances;  // one at most, unless kPerRequest
    int64_t next_start_ms = 0;
    int64_t backoff_ms = kFirstBackoffMs;
    int failures = 0;  // exits in a row before readiness
    uint64_t starts = 0;
    int64_t ready_after_ms = 0;
    bool was_ready = false;
  };

  Result<void> open_listeners();
  Result<void> start_due_units();
  Result<void> start_daemon(Slot& slot);
  void accept_connection(Slot& slot);
  void poll_once(int stop_fd);
  void on_ready(Slot& slot, Instance& instance);
  void reap();
  void on_exit(Slot& slot, std::list<Instance>::iterator instance, int status);
  void drain_output(Slot& slot, Instance& instance);
  bool all_ready() const;
  int poll_timeout_ms() const;
  std::string status_document() const;
  void changed();
  void stop_all();
  void stop_unit(Slot& slot, int64_t limit_ms);
  Slot* find(const std::string& name);

  os::SandboxLauncher& launcher_;
  SupervisorOptions options_;
  std::vector<Slot> slots_;
  os::Fd child_signals_;
  int64_t began_ms_ = 0;
  int64_t node_ready_ms_ = 0;
  bool stop_requested_ = false;
  bool stopping_ = false;
  std::string failure_;
};

}  // namespace tie::launcher
