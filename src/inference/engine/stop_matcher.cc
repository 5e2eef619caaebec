#include "inference/engine/stop_matcher.h"

#include <algorithm>

namespace tie::engine {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  patterns_.reserve(stops.size());
  for (const auto& text : stops) {
    Pattern pattern{text, std::vector<uint16_t>(text.size() + 1, 0)};
    for (size_t i = 1, k = 0; i < text.size(); ++i) {
      while (k > 0 && text[i] != text[k]) k = pattern.fallback[k];
      if (text[i] == text[k]) ++k;
      pattern.fallback[i + 1] = static_cast<uint16_t>(k);
    }
    patterns_.push_back(std::move(pattern));
  }
}

bool StopMatcher::feed(std::string_view bytes, bool armed) {
  for (char byte : bytes) {
    ++total_;
    longest_prefix_ = 0;
    uint32_t longest_match = 0;
    for (auto& p : patterns_) {
      while (p.matched > 0 && p.text[p.matched] != byte) p.matched = p.fallback[p.matched];
      if (p.text[p.matched] == byte) ++p.matched;
      if (p.matched == p.text.size()) {
        longest_match = std::max(longest_match, p.matched);
        p.matched = p.fallback[p.matched];
      }
      longest_prefix_ = std::max(longest_prefix_, p.matched);
    }
    if (longest_match > 0 && armed) {
      match_ = {total_ - longest_match, total_};
      return true;
    }
  }
  return false;
}

}  // namespace tie::engine
