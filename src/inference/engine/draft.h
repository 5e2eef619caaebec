// Speculation by looking the end of the text up in the text itself: if the last few tokens occurred before, what
// followed then is drafted and verified in the same forward pass. Drawn tokens are the same with and without, since
// every position draws with its own random number. Switches itself off while drafts are not accepted often enough to
// pay for the extra rows, and tries again later. One object per sample, engine thread. Cost: one pass over the sample's
// token ids.
#pragma once
#include <cstdint>
#include <span>

namespace tie::engine {

inline constexpr uint32_t kMaxDraftTokens = 7;

class Drafter {
 public:
  // A continuation of `tokens`, a view into it; at most `most` long, empty when nothing matches or drafting is resting.
  std::span<const int32_t> propose(std::span<const int32_t> tokens, uint32_t most);
  // What became of the last non-empty proposal.
  void learn(uint32_t drafted, uint32_t accepted);

 private:
  float accepted_per_round_ = 2.0f;  // moving average
  uint32_t rest_ = 0;                // rounds left without a draft
  uint32_t next_rest_ = 16;
};

}  // namespace tie::engine
