// Code points and the character classes that pre-tokenizers ask for. Tables come from utf8proc (Unicode 15).
// Pure functions. White space is Unicode's White_Space property; invalid bytes count as one symbol character each.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tie::text {

enum CharClass : uint16_t {
  kLetter = 1,
  kNumber = 2,
  kMark = 4,
  kPunctuation = 8,
  kSymbol = 16,
  kSpace = 32,
  kNewline = 64,       // \r or \n
  kUpperish = 128,     // Lu Lt Lm Lo M
  kLowerish = 256,     // Ll Lm Lo M
  kCased = 512,        // Lu Ll Lt
  kWordNumber = 1024,  // Nd Nl
};

struct Char {
  uint32_t code;
  uint32_t offset;  // of its first byte
  uint16_t classes;
};

struct Decoded {
  uint32_t code;
  uint32_t bytes;  // at least 1
  bool valid;
};
// One character at the start of non-empty text; a byte that starts no valid sequence gives U+FFFD, 1, false.
Decoded decode_utf8(std::string_view text);
void append_utf8(std::string& out, uint32_t code);
bool is_valid_utf8(std::string_view text);
// Length of the longest prefix that consists of whole characters; what follows could still become one (at most 3 bytes)
// if `open` is set.
size_t whole_utf8_prefix(std::string_view text, bool& open);

uint16_t char_classes(uint32_t code);
bool is_han(uint32_t code);

// All characters of `text` and one more at its end (code 0, offset text.size()).
void decode_all(std::string_view text, std::vector<Char>& out);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
// Invalid UTF-8 is returned unchanged.
std::string normalize(std::string_view text, NormalForm form);
std::string to_lower(std::string_view text);

}  // namespace tie::text
