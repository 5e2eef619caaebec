// Log-probabilities of one generated token. They describe the model's own distribution: the log-softmax of the raw
// logits over the tokenizer's vocabulary, before temperature, penalties, bias and grammar, as the field's servers
// report them. Never infinite: kLogprobFloor stands for "impossible".
#pragma once
#include <array>
#include <cstdint>

#include "inference/engine/sampling_options.h"

namespace tie::engine {

inline constexpr float kLogprobFloor = -9999.0f;

struct TopLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct TokenLogprobs {
  int32_t token = 0;
  float logprob = 0;
  uint32_t n_top = 0;
  std::array<TopLogprob, kMaxTopLogprobs> top;  // the first n_top, best first
};

}  // namespace tie::engine
