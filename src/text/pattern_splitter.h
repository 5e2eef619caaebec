// One regular expression of a tokenizer.json that no hand-written matcher covers, run by PCRE2 without JIT and under
// limits. Threads: split() may run in several threads. Errors: kTooLarge when a limit is passed.
#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/split_rules.h"

namespace tie::text {

class PatternSplitter {
 public:
  // `behavior`: SplitBehavior, or'ed with kInverted to treat the gaps as the matches.
  static Result<PatternSplitter> compile(std::string_view pattern, uint32_t behavior);
  // `text` is what `chars` was decoded from.
  Result<void> split(std::string_view text, const std::vector<Char>& chars, Piece piece, std::vector<Piece>& out) const;

 private:
  struct Free {
    void operator()(void* code) const;
  };
  std::unique_ptr<void, Free> code_;
  uint32_t behavior_ = kIsolated;
};

}  // namespace tie::text
