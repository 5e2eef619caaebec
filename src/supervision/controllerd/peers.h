// The peers of tie-controllerd as threads: each connects, listens, turns what it hears into core events, and connects
// again when the peer goes away. None of them decides anything. Peers may be absent, restart, hang or lie about order;
// what is heard is judged by the core. Threads: each object owns its own; `sink` is called from them and must be
// thread-safe. stop() first, then destroy.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "os/fd.h"
#include "supervision/controllerd/core.h"
#include "supervision/controllerd/watchdog.h"

namespace tie::controller {

using Sink = std::function<void(Event)>;

struct PeerTiming {
  int64_t connect_ms = 500;
  int64_t call_ms = 2'000;                   // unary calls
  int64_t silence_ms = 5'000;                // streams with a heartbeat of 1 s
  int64_t registration_silence_ms = 12'000;  // cloudboardd's keepalive comes every 5 s
  int64_t owner_poll_ms = 1'000;
  int64_t owner_loading_poll_ms = 50;
  int64_t retry_ms = 10;  // at first after a loss, since a recycle waits for it; grows to
  int64_t retry_max_ms = 250;
};

// A thread that can be told to stop while it sleeps.
class PeerThread {
 public:
  virtual ~PeerThread() = default;
  void start();
  void stop();
  void join();

 protected:
  virtual void run() = 0;
  // False when stopping.
  bool sleep(int64_t ms);
  bool stopping() const { return stopping_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

class GpuWatcher final : public PeerThread {
 public:
  GpuWatcher(std::string socket, PeerTiming timing, Watchdog& dog, Sink sink);

 private:
  void run() override;
  void listen();
  std::string socket_;
  PeerTiming timing_;
  Watchdog& dog_;
  Sink sink_;
  bool heard_ = false;
};

class OwnerWatcher final : public PeerThread {
 public:
  // Ready when every one of `models` is.
  OwnerWatcher(std::string socket, std::vector<std::string> models, PeerTiming timing, Sink sink);

 private:
  void run() override;
  Result<OwnerReport> ask(os::Fd& socket);
  std::string socket_;
  std::vector<std::string> models_;
  PeerTiming timing_;
  Sink sink_;
};

class ProbeWatcher final : public PeerThread {
 public:
  ProbeWatcher(size_t index, std::string socket, PeerTiming timing, Watchdog& dog, Sink sink);

 private:
  void run() override;
  void listen();
  size_t index_;
  std::string socket_;
  PeerTiming timing_;
  Watchdog& dog_;
  Sink sink_;
  bool heard_ = false;
};

// The registration with cloudboardd and everything said under it.
class Registrar final : public PeerThread {
 public:
  Registrar(std::string socket, std::string node_id, std::vector<std::string> models, PeerTiming timing, Watchdog& dog,
            Sink sink);
  // Calls UpdateHealthStatus; blocks up to the wait and an answer's time. Returns false when `superseded` turned true
  // meanwhile. A failure drops the registration.
  void advertise(const Advertise& command);
  // Ends an advertise() in progress on another thread.
  void cancel_advertise();
  bool restart_prewarmed(int64_t limit_ms);
  // What is in flight now. Nothing: not registered, or no answer in time. Any thread.
  std::optional<LoadReport> ask_load(int64_t limit_ms);

 private:
  void run() override;
  void hold();
  void drop();
  std::string socket_, node_id_;
  std::vector<std::string> models_;
  PeerTiming timing_;
  Watchdog& dog_;
  Sink sink_;
  std::mutex mutex_;
  std::shared_ptr<grpc::Channel> channel_;  // of the present registration
  std::string session_;
  grpc::ClientContext* registration_ = nullptr;  // to drop it
  grpc::ClientContext* advertising_ = nullptr;
};

struct Reloaded {
  std::vector<std::string> models;  // that the owner hands out now
  std::string refused;              // why it did not take a changed one; empty: it took all
};
// Asks the owner to look at its assets; answers once it has loaded what changed. Nothing: it does not answer.
std::optional<Reloaded> ask_reload(const std::string& owner_socket, int64_t limit_ms);
// Asks one probe to warm its runtime's prefix cache.
bool ask_warmup(const std::string& probe_socket, const PeerTiming& timing);
// Asks one probe to recycle its runtime.
bool ask_recycle(const std::string& probe_socket, const SendRecycle& command, const PeerTiming& timing);

// Runs jobs one after the other on a thread of its own; at most kMaxJobs wait (more is a broken invariant: the core has
// few commands outstanding).
class Worker final : public PeerThread {
 public:
  static constexpr size_t kMaxJobs = 64;
  void post(std::function<void()> job);

 private:
  void run() override;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
};

}  // namespace tie::controller
