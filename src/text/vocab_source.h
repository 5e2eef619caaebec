// A vocabulary on its way into an image: what the readers of GGUF and tokenizer.json fill and compile_image() lays out.
// Not used at run time.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "text/vocab_layout.h"

namespace tie::text {

constexpr uint32_t kMaxVocabTokens = 1u << 22;
constexpr uint32_t kMaxVocabMerges = 1u << 23;
constexpr size_t kMaxTokenBytes = 1u << 16;

struct SourceToken {
  std::string bytes;  // what it stands for in text
  uint8_t attributes = image::kNormal;
  double score = 0;
  bool added = false;   // recognised in text before any splitting (control, user-defined)
  std::string literal;  // what an added token is recognised by, where that differs from `bytes`
  bool merged = true;  // can come out of merging; false where the vocabulary spells spaces as U+2581 and this token has
                       // a true space
};

struct SourceStep {
  uint32_t kind;
  uint32_t behavior = 0;
  std::string pattern;
};

struct VocabSource {
  image::Model model = image::kByteLevelBpe;
  uint32_t flags = 0;
  std::vector<SourceToken> tokens;
  // In rank order; left and right as the text of the parts (bytes, already decoded).
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<SourceStep> steps;
  uint32_t bos = image::kNone, eos = image::kNone, eot = image::kNone, unk = image::kNone, pad = image::kNone;
  std::vector<uint32_t> end_of_generation;
};

// kBadRequest / kTooLarge names what cannot be laid out.
Result<Bytes> compile_image(const VocabSource& source);

// Marks well-known end-of-turn tokens as such and gathers end_of_generation. `all`: ordinary tokens of such a name
// count too (GGUF files that forgot to call them control tokens), else only those called control tokens.
void find_end_of_generation(VocabSource& source, bool all);
// Marks the known fill-in-the-middle tokens as control tokens.
void mark_fill_tokens(VocabSource& source);

// The steps and flags of a GGUF `tokenizer.ggml.pre` name; kUnsupportedFeature names an unknown one.
Result<void> apply_pre_tokenizer_name(std::string_view name, VocabSource& source);

// The byte that a character of GPT-2's printable alphabet stands for, or -1.
int byte_of_printable(uint32_t code);
// A token's text in that alphabet as bytes; false when some character is not of it.
bool decode_printable(std::string_view text, std::string& bytes);

}  // namespace tie::text
