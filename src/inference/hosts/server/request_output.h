// Between the engine's thread, which produces, and the stream's thread, which writes: gathers what one request has to
// send. While a write is under way further tokens join the same response, so a slow client gets fewer, larger
// responses, never an unbounded queue; a fast model's tokens gather for response_interval_us(), because each
// response costs every process behind this one as much as a token does. Threads: on_output and on_end on the engine's;
// take and everything else on the stream service's; due on both. One uncontended lock each.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "inference/engine/request.h"
#include "inference/hosts/server/limits.h"
#include "inference/hosts/server/response_writer.h"

namespace tie::runtime_host {

// Between two responses of one request while `open_calls` are being answered.
int64_t response_interval_us(uint32_t open_calls);

class RequestOutput final : public engine::OutputSink, public std::enable_shared_from_this<RequestOutput> {
 public:
  using Announce = std::function<void(std::shared_ptr<RequestOutput>)>;
  RequestOutput(std::string id, uint32_t outputs, bool with_logprobs, uint32_t n_samples, Announce announce);
  ~RequestOutput() override;

  void on_output(const engine::Output& output) override;
  void on_end(const engine::Usage& usage, const Error* error) override;
  bool has_room() const override;

  struct Next {
    ResponseParts parts;
    std::optional<Error> error;  // the request ended with it; parts.final is set
  };
  // The next response to send, if there is one, due or not. The one after it becomes due at the next multiple of
  // interval_us: requests that share an interval are sent together, and the engine's threads are disturbed once.
  std::optional<Next> take(int64_t interval_us = kResponseIntervalUs);
  // Worth a response now: the first tokens, an end, many tokens, or its time has come.
  bool due(int64_t now_us) const {
    return urgent_.load(std::memory_order_relaxed) || now_us >= due_us_.load(std::memory_order_relaxed);
  }
  // take() will be looked at again; a later output announces itself anew.
  void seen() { announced_.store(false); }

  const std::string id;
  const uint32_t outputs;
  const bool with_logprobs;
  std::shared_ptr<engine::RequestHandle> handle;  // stream thread
  void* call = nullptr;                           // stream thread: the call it belongs to, null when that is gone

 private:
  void announce();

  const uint32_t n_samples_;
  const Announce announce_;
  std::atomic<bool> announced_{false};
  std::atomic<size_t> unsent_tokens_{0};
  std::atomic<bool> urgent_{false};
  std::atomic<int64_t> due_us_{0};
  std::mutex mutex_;
  std::vector<ResponseParts> parts_;  // at most one unfinished per sample
  uint32_t samples_finished_ = 0;
  bool ended_ = false, final_taken_ = false;
  engine::Usage usage_;
  std::optional<Error> error_;
};

}  // namespace tie::runtime_host
