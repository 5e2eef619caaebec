// The forms in which the content of a request could be left behind, as byte patterns. Pure functions.
// Source: the rules on memory after a request (ARCHITECTURE.md, "Statelessness over time").
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace tie::proof {

// Any of the patterns is a find: a fragment of a user's text is one as well.
struct LeakForm {
  std::string name;
  std::vector<Bytes> patterns;  // each at least kMinPatternBytes (leak_search.h)
};

// `words` are unlikely to occur by chance, at least 8 bytes each, and hold a quote and a character beyond ASCII, so
// that their escaped forms differ. Two forms: UTF-8; JSON-escaped, with and without \u escapes.
std::vector<LeakForm> text_forms(const std::vector<std::string>& words);
// Runs of consecutive ids as int32 and as int64, little-endian, overlapping so that any run of 9 holds a whole pattern.
std::vector<LeakForm> token_forms(std::span<const int32_t> ids);
// A key: either half of it.
LeakForm key_form(std::string name, const std::vector<Bytes>& keys);
// Rows of keys or values as they lie in the cache; rows of zeros and repetitions are left out.
LeakForm row_form(std::string name, const std::vector<Bytes>& rows);

}  // namespace tie::proof
