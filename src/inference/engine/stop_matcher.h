// Finds stop strings in the bytes of generated tokens and tells which tokens may be sent: text that is still a prefix
// of a stop is held back, everything else is let go at once, and nothing of a stop is ever let go. One object per
// sample, one thread. Cost: a few operations per byte and pattern; no allocation after reserve().
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tie::engine {

class StopMatcher {
 public:
  explicit StopMatcher(const std::vector<std::string>& stops);

  struct Match {
    uint64_t start = 0, end = 0;  // byte offsets in the whole output
  };
  // Appends one token's text. True when a stop string is complete: the match that ends first, and of those the longest.
  // With armed false (min_tokens not reached) a match that ends in this token is passed over.
  bool feed(std::string_view bytes, bool armed);

  const Match& match() const { return match_; }
  uint64_t total_bytes() const { return total_; }
  // Bytes that cannot become part of a stop any more.
  uint64_t safe_bytes() const { return total_ - longest_prefix_; }
  bool active() const { return !patterns_.empty(); }

 private:
  struct Pattern {
    std::string text;
    std::vector<uint16_t> fallback;  // Knuth-Morris-Pratt failure function
    uint32_t matched = 0;
  };
  std::vector<Pattern> patterns_;
  uint64_t total_ = 0;
  uint32_t longest_prefix_ = 0;
  Match match_;
};

}  // namespace tie::engine
