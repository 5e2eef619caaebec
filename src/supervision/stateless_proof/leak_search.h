// Finds any of some hundreds of byte patterns in gigabytes: one pass, about a nanosecond a byte. Immutable after
// create(); any number of threads.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "supervision/stateless_proof/leak_forms.h"

namespace tie::proof {

inline constexpr size_t kMinPatternBytes = 8;
inline constexpr size_t kMaxPatternBytes = 4096;

class LeakSearch {
 public:
  // kBadRequest: a form without patterns (its detector could find nothing), or a pattern that is too short or long.
  static Result<LeakSearch> create(std::vector<LeakForm> forms);

  // `found` for every occurrence of every pattern; it ends at `end` of `bytes`.
  void search(ByteView bytes, const std::function<void(size_t form, size_t end)>& found) const;
  const std::vector<LeakForm>& forms() const { return forms_; }
  size_t longest_pattern() const { return longest_; }

 private:
  struct Pattern {
    size_t form;
    const Bytes* bytes;
  };
  LeakSearch() = default;
  std::vector<LeakForm> forms_;
  std::vector<bool> possible_;  // by the hash of a pattern's first 8 bytes
  std::unordered_multimap<uint64_t, Pattern> by_beginning_;
  size_t longest_ = 0;
};

}  // namespace tie::proof
