// Token ids to text, one token at a time. Never gives a part of a character: bytes of an unfinished one wait for the
// next token. The deltas of push() and the last one of finish() concatenate to the whole text. Threads: one Detokenizer
// belongs to one sample. Owns: at most 3 pending bytes. `vocab` must outlive it.
#pragma once
#include <string>
#include <string_view>

#include "text/vocab_image.h"

namespace tie::text {

struct DetokenizeOptions {
  bool show_control = false;  // control tokens as their literal text instead of nothing
  bool at_start = false;  // the sequence begins a text: drop the space that the vocabulary's prefix rule put in front
};

class Detokenizer {
 public:
  explicit Detokenizer(const Vocab& vocab, const DetokenizeOptions& options = {})
      : vocab_(&vocab), options_(options), at_start_(options.at_start) {}

  // Text that became whole with this token; may be empty. Ids outside the vocabulary and control tokens give nothing.
  // Bytes that can no longer become valid UTF-8 are given as U+FFFD each maximal bad sequence, as text must be valid.
  std::string push(TokenId id);
  // What is still pending, as U+FFFD when it is an unfinished character. The object starts afresh afterwards.
  std::string finish();
  // Bytes held back so far.
  std::string_view pending() const { return pending_; }

 private:
  std::string take_whole(bool final);
  const Vocab* vocab_;
  DetokenizeOptions options_;
  bool at_start_;
  std::string pending_;
};

// All at once. With raw bytes kept: invalid UTF-8 comes out as it is.
std::string detokenize(const Vocab& vocab, std::span<const TokenId> ids,
                       const DetokenizeOptions& options = {.show_control = true, .at_start = true});
// The true bytes of one token for logprobs, even when they are a part of a character; control tokens give their literal
// text.
Bytes token_bytes_for_logprobs(const Vocab& vocab, TokenId id);

}  // namespace tie::text
