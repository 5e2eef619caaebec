// How one request wants its tokens drawn and when it wants to stop: the checked form of proto/sampling.proto.
// Plain data. check() is called by Engine::submit, so nothing behind it ever sees a value out of range.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace tie::engine {

inline constexpr float kGreedyBelow = 1e-5f;  // temperatures below this take the most likely token
inline constexpr uint32_t kMaxSamples = 16;
inline constexpr uint32_t kMaxTopLogprobs = 20;
inline constexpr uint32_t kMaxStopStrings = 16;
inline constexpr uint32_t kMaxStopBytes = 256;
inline constexpr uint32_t kMaxStopTokenIds = 64;
inline constexpr uint32_t kMaxLogitBiases = 1024;

struct SamplingOptions {
  float temperature = 1.0f;                           // [0, 2]
  uint32_t top_k = 0;                                 // 0 = off
  float top_p = 1.0f;                                 // (0, 1]
  float min_p = 0.0f;                                 // [0, 1]
  float repetition_penalty = 1.0f;                    // (0, 100]; prompt and output
  float presence_penalty = 0.0f;                      // [-2, 2]; output only
  float frequency_penalty = 0.0f;                     // [-2, 2]; output only
  std::vector<std::pair<int32_t, float>> logit_bias;  // id, [-100, 100]
  std::optional<uint64_t> seed;                       // absent: drawn when the request is submitted
  uint32_t n = 1;
  std::optional<uint32_t> max_tokens;  // absent: up to the context
  uint32_t min_tokens = 0;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool logprobs = false;
  uint32_t top_logprobs = 0;
  bool include_stop_in_output = false;
  bool prompt_logprobs = false;  // also of the prompt's tokens, all but the first; with as many top_logprobs

  bool greedy() const { return temperature < kGreedyBelow; }
  bool has_penalties() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
};

// kBadRequest naming the parameter and its limits. `vocabulary`: ids that exist.
Result<void> check(const SamplingOptions& options, uint32_t vocabulary);

}  // namespace tie::engine
