// The inference engine: one thread that batches all requests into forward passes. This is what a host holds.
// submit() and cancel() work from any thread; results arrive through each request's OutputSink on the engine's thread.
// step_done, if given, is called after every step that called a sink, so that a host wakes its writers once a step.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "inference/engine/engine_core.h"

namespace tie::engine {

class Engine {
 public:
  // Takes a core that nobody else uses any more.
  Engine(std::unique_ptr<EngineCore> core, std::function<void()> step_done);
  // Ends what is in flight with kNotReady and joins the thread.
  ~Engine();

  // Checked and queued at once, or an error: kBadRequest, kContextExceeded, kUnsupportedFeature, kOverloaded, kNotReady
  // (draining). The sink is used only after success.
  Result<std::shared_ptr<RequestHandle>> submit(RequestSpec spec);
  // Takes effect before the next step: KV blocks are freed, the sink hears kCancelled.
  void cancel(RequestHandle& handle);

  // From now on submit() is refused with kNotReady; what runs goes on.
  void stop_accepting() { accepting_ = false; }
  uint32_t in_flight() const { return in_flight_; }  // requests submitted and not ended
  bool wait_idle(Deadline deadline);

  uint32_t context() const { return core_->context(); }
  const TokenTable& table() const { return core_->table(); }
  const bones::ModelConfig& model_config() const { return core_->model_config(); }

 private:
  void run();
  uint32_t take_submitted();  // how many were refused by a full queue
  void count_ended(uint32_t ended);
  void wake();

  std::unique_ptr<EngineCore> core_;
  std::function<void()> step_done_;
  std::atomic<bool> accepting_{true};
  std::atomic<uint32_t> in_flight_{0};
  std::atomic<bool> has_news_{false};  // submitted_ or a cancel flag is worth a look
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::vector<std::unique_ptr<Request>> submitted_, taken_;
  std::atomic<bool> stopping_{false};
  const uint32_t max_in_flight_;
  std::thread thread_;
};

}  // namespace tie::engine
