#include "supervision/stateless_proof/leak_search.h"

#include <algorithm>
#include <cstring>

namespace tie::proof {
namespace {

constexpr unsigned kHashBits = 20;

uint64_t beginning(const uint8_t* at) {
  uint64_t out;
  std::memcpy(&out, at, sizeof out);
  return out;
}

size_t hash_of(uint64_t value) {
  return static_cast<size_t>(value * 0x9e3779b97f4a7c15u >> (64 - kHashBits));
}

}  // namespace

Result<LeakSearch> LeakSearch::create(std::vector<LeakForm> forms) {
  LeakSearch out;
  out.forms_ = std::move(forms);
  out.possible_.resize(size_t{1} << kHashBits);
  for (size_t i = 0; i < out.forms_.size(); ++i) {
    const LeakForm& form = out.forms_[i];
    if (form.patterns.empty()) return fail(Code::kBadRequest, "nothing is known to look for as " + form.name);
    for (const Bytes& pattern : form.patterns) {
      if (pattern.size() < kMinPatternBytes || pattern.size() > kMaxPatternBytes)
        return fail(Code::kBadRequest, "a pattern of " + form.name + " is too short or too long");
      uint64_t first = beginning(pattern.data());
      out.possible_[hash_of(first)] = true;
      out.by_beginning_.emplace(first, Pattern{i, &pattern});
      out.longest_ = std::max(out.longest_, pattern.size());
    }
  }
  return out;
}

void LeakSearch::search(ByteView bytes, const std::function<void(size_t, size_t)>& found) const {
  for (size_t at = 0; at + kMinPatternBytes <= bytes.size(); ++at) {
    uint64_t first = beginning(bytes.data() + at);
    if (!possible_[hash_of(first)]) continue;
    auto [candidate, end] = by_beginning_.equal_range(first);
    for (; candidate != end; ++candidate) {
      const Bytes& pattern = *candidate->second.bytes;
      if (pattern.size() <= bytes.size() - at && std::memcmp(bytes.data() + at, pattern.data(), pattern.size()) == 0)
        found(candidate->second.form, at + pattern.size());
    }
  }
}

}  // namespace tie::proof
