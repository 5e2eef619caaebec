#include "inference/hosts/server/request_output.h"

#include <algorithm>

#include "base/clock.h"
#include "inference/hosts/server/limits.h"

namespace tie::runtime_host {

int64_t response_interval_us(uint32_t open_calls) {
  int64_t shared = kResponseIntervalUs * open_calls / kUnhurriedCalls;
  return std::clamp(shared, kResponseIntervalUs, kLongestResponseIntervalUs);
}

RequestOutput::RequestOutput(std::string request_id, uint32_t output_bits, bool logprobs, uint32_t n_samples,
                             Announce announce)
    : id(std::move(request_id)),
      outputs(output_bits),
      with_logprobs(logprobs),
      n_samples_(n_samples),
      announce_(std::move(announce)) {}

RequestOutput::~RequestOutput() {
  for (auto& p : parts_) wipe(p);
}

void RequestOutput::announce() {
  if (!announced_.exchange(true)) announce_(shared_from_this());
}

bool RequestOutput::has_room() const {
  return unsent_tokens_.load(std::memory_order_relaxed) < (with_logprobs ? kMaxUnsentLogprobs : kMaxUnsentTokens);
}

void RequestOutput::on_output(const engine::Output& output) {
  {
    std::lock_guard lock(mutex_);
    auto at =
        std::find_if(parts_.begin(), parts_.end(), [&](const ResponseParts& p) { return p.sample == output.sample; });
    if (at == parts_.end()) {
      parts_.push_back({.sample = output.sample});
      at = parts_.end() - 1;
    }
    at->tokens.insert(at->tokens.end(), output.tokens.begin(), output.tokens.end());
    at->logprobs.insert(at->logprobs.end(), output.logprobs.begin(), output.logprobs.end());
    at->prompt_logprobs.insert(at->prompt_logprobs.end(), output.prompt_logprobs.begin(), output.prompt_logprobs.end());
    at->stop_trim_bytes = output.stop_trim_bytes;
    at->finish = output.finish;
    if (output.finish != engine::Finish::kNone) ++samples_finished_;
    const size_t more = output.tokens.size() + output.prompt_logprobs.size();
    size_t unsent = unsent_tokens_.fetch_add(more, std::memory_order_relaxed) + more;
    if (output.finish != engine::Finish::kNone || unsent >= kMostGatheredTokens) urgent_ = true;
  }
  announce();
}

void RequestOutput::on_end(const engine::Usage& usage, const Error* error) {
  {
    std::lock_guard lock(mutex_);
    usage_ = usage;
    if (error) error_ = *error;
    ended_ = true;
    urgent_ = true;
  }
  announce();
}

std::optional<RequestOutput::Next> RequestOutput::take(int64_t interval_us) {
  std::lock_guard lock(mutex_);
  if (final_taken_) return std::nullopt;
  // The last finish and the end belong into one response; the end follows within the same step.
  bool last = parts_.size() == 1 && samples_finished_ == n_samples_;
  if (last && !ended_) return std::nullopt;
  Next next;
  if (!parts_.empty()) {
    next.parts = std::move(parts_.front());
    parts_.erase(parts_.begin());
    unsent_tokens_.fetch_sub(next.parts.tokens.size() + next.parts.prompt_logprobs.size(), std::memory_order_relaxed);
  } else if (!ended_) {
    return std::nullopt;
  }
  // What other samples have gathered is due until all of it has been taken.
  if (parts_.empty()) {
    due_us_ = (monotonic_us() / interval_us + 1) * interval_us;
    urgent_ = ended_ || samples_finished_ == n_samples_;
  }
  if (ended_ && parts_.empty()) {
    next.parts.final = final_taken_ = true;
    next.parts.usage = usage_;
    next.error = error_;
    if (error_)
      next.parts.finish = error_->code == Code::kCancelled ? engine::Finish::kCancelled : engine::Finish::kError;
  }
  return next;
}

}  // namespace tie::runtime_host
