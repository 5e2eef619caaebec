#include "inference/engine/draft.h"

#include <algorithm>

namespace tie::engine {
namespace {
constexpr size_t kLongestMatch = 3, kShortestMatch = 2;
constexpr float kWorthIt = 0.5f;  // accepted tokens a round below which the extra rows cost more than they bring
constexpr uint32_t kLongestRest = 512;
}  // namespace

std::span<const int32_t> Drafter::propose(std::span<const int32_t> tokens, uint32_t most) {
  if (rest_ > 0) {
    --rest_;
    return {};
  }
  most = std::min(most, 1 + static_cast<uint32_t>(2 * accepted_per_round_));  // short drafts while few are accepted
  for (size_t n = kLongestMatch; n >= kShortestMatch && most > 0; --n) {
    if (tokens.size() <= n) continue;
    const int32_t* tail = tokens.data() + tokens.size() - n;
    for (size_t at = tokens.size() - n; at-- > 0;) {  // the latest occurrence before the tail itself
      if (tokens[at] != tail[0] || !std::equal(tail, tail + n, tokens.data() + at)) continue;
      return tokens.subspan(at + n, std::min<size_t>(most, tokens.size() - at - n));
    }
  }
  return {};
}

void Drafter::learn(uint32_t drafted, uint32_t accepted) {
  if (drafted == 0) return;
  accepted_per_round_ = 0.75f * accepted_per_round_ + 0.25f * static_cast<float>(accepted);
  if (accepted_per_round_ >= kWorthIt) {
    next_rest_ = 16;
    return;
  }
  rest_ = next_rest_;
  next_rest_ = std::min(2 * next_rest_, kLongestRest);
  accepted_per_round_ = 2 * kWorthIt;
}

}  // namespace tie::engine
