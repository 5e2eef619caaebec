// Text to token ids. Byte-level BPE, character BPE, SPM and unigram vocabularies, all out of one mapped Vocab.
// Threads: a Tokenizer is immutable after creation and may be shared. Owns: compiled patterns of unusual pre-tokenizers
// only. Cost: near linear in the text, whatever it is made of; no recursion. Limits: kMaxTextBytes a call.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocab_image.h"

namespace tie::text {

constexpr size_t kMaxTextBytes = size_t{64} << 20;

struct TokenizeOptions {
  bool parse_special = false;  // false: no input yields a control token
  bool add_special = false;    // BOS / EOS as the model wants them
};

class Tokenizer {
 public:
  // `vocab` must outlive the tokenizer. kUnsupportedFeature when a pre-tokenizer pattern cannot be compiled.
  static Result<Tokenizer> create(const Vocab& vocab);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  const Vocab& vocab() const;
  // kTooLarge over kMaxTextBytes. Invalid UTF-8 is encoded byte by byte, as true bytes.
  Result<std::vector<TokenId>> tokenize(std::string_view text, const TokenizeOptions& options = {}) const;

  // Text from a template with user text inside: special tokens are recognised only where no `breaker` (one character, a
  // Unicode noncharacter in UTF-8) stands inside them; breakers are removed before the rest is tokenized. Adds BOS when
  // the model wants one and the text does not begin with it. See prompt.h, the only caller.
  Result<std::vector<TokenId>> tokenize_marked(std::string_view text, std::string_view breaker) const;
  // The control tokens of such a text, in order (no tokenizing in between).
  std::vector<TokenId> control_tokens_of_marked(std::string_view text) const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

// The text as a person may see it. `breaker` must not be empty.
std::string without_breakers(std::string_view text, std::string_view breaker);

}  // namespace tie::text
