// Pre-tokenizers: how a text is cut into pieces before merging. Each SplitKind is one hand-written matcher that does
// what the regular expression in its comment does, in time linear in the text and without recursion. kPattern runs any
// other expression through PCRE2. Threads: pure functions. Sources: the tokenizer.json files of the model families;
// where llama.cpp's reading of a GGUF differs from the family's own file (letters outside ASCII in o200k and tekken),
// the kinds ending in Gguf follow the former.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/unicode.h"

namespace tie::text {

enum SplitKind : uint32_t {
  kPattern = 0,
  kGpt2 = 1,    // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kLlama3 = 2,  // (?i:'s|..)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
  kQwen2 = 3,   // as kLlama3 with \p{N}
  kQwen35 = 4,  // as kQwen2 with marks counted as letters
  kO200k = 5,   // upper/lower case words with the contraction behind them, \p{N}{1,3}, [\r\n/]*
  kO200kGguf = 6,
  kTekken = 7,  // as kO200k without contractions, \p{N}
  kTekkenGguf = 8,
  kKimi = 9,        // Han runs, then as kO200k over the rest
  kBailing = 10,    // as kQwen2 with \s*[\r\n] for new lines (same matches)
  kSeedCoder = 11,  // as kQwen2 without new lines behind punctuation
  kDeepseek3 =
      12,  // [!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
  kDigit = 20,                  // \p{N}
  kDigitRun = 21,               // \p{N}+
  kDigits3 = 22,                // \p{N}{1,3}
  kAsciiDigits3 = 23,           // [0-9][0-9][0-9]
  kDigitsFromRight3 = 24,       // a run of \p{N}, grouped in threes from its end
  kFalconPunctuation = 30,      // [\p{P}\$\+<=>\^~\|`]+
  kDefaultPunctuation = 31,     // the same without `
  kBloom = 32,                  // ?[^(\s|.,!?…。，、।۔،)]+
  kNewlineChar = 33,            // [\r\n]
  kNewlineRuns = 34,            // [^\n]+|[\n]+
  kSpaceLetters = 40,           // \s?\p{L}+
  kSpaceCased = 41,             // \s?[cased letters]+
  kSpacePunctuation = 42,       // \s?\p{P}+
  kSpaceAsciiPunctuation = 43,  // \s?[!-/:-~！-／：-～‘-‟　-。]+
  kTrailingSpace = 44,          // \s+$
  kCjkDeepseek = 45,            // [一-龥ࠀ-一가-퟿]+
  kCjkKana = 46,                // [一-龥぀-ゟ゠-ヿ]+
  kCjkAsian = 47,               // East and South-East Asian scripts of AFMoE
  kMetaspaceWord = 50,          // a new piece before each space (Metaspace with split)
  kWhitespaceWord = 51,         // HF Whitespace: \w+|[^\w\s]+, the rest removed
  kWhitespaceSplit = 52,        // HF WhitespaceSplit: white space removed
  kPunctuationChar = 53,        // HF Punctuation: each punctuation character alone
  kDropSpace = 54,              // white space removed
};

enum SplitBehavior : uint32_t {
  kIsolated = 0,
  kRemoved = 1,
  kMergedWithPrevious = 2,
  kMergedWithNext = 3,
  kContiguous = 4,
  kInverted = 16
};

struct Piece {
  uint32_t begin, end;  // character indexes
};

// Whether `kind` is one of the matchers above (kPattern is not).
bool is_split_kind(uint32_t kind);
// Cuts one piece; appends the parts to `out`, in order, covering everything but what the kind removes.
void split_piece(SplitKind kind, const std::vector<Char>& chars, Piece piece, std::vector<Piece>& out);

}  // namespace tie::text
