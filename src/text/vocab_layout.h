// The byte layout of a vocabulary image, shared by its compiler and its reader. Little-endian, every section 16-byte
// aligned. A change of any struct or meaning here raises kVersion: an old image is then refused and compiled anew.
#pragma once
#include <cstdint>

namespace tie::text::image {

constexpr char kMagic[8] = {'T', 'I', 'E', 'V', 'O', 'C', 'A', 'B'};
constexpr uint32_t kVersion = 3;
constexpr uint32_t kNone = 0xffffffff;

enum Flag : uint32_t {
  kAddBos = 1,
  kAddEos = 2,
  kAddSpacePrefix = 4,   // SPM: a space precedes the text
  kPrefixFirstOnly = 8,  // ... only at the very start, not after each special token
  kIgnoreMerges = 16,    // a whole pre-token found in the vocabulary is taken as it is
  kByteFallback = 32,    // characters without a token become byte tokens
  kNormalizeNfc = 64,
  kFuseUnknown = 128,
  kMetaspace = 256,          // spaces are written as U+2581 in the vocabulary's texts
  kStripLeadingSpace = 512,  // the decoder drops the one space that the prefix put in front
  kNormalizeNfkc = 1024,
  kCollapseSpaces = 2048,  // runs of spaces become one (unigram models)
  kNormalizeNfd = 4096,
  kLowercase = 8192,
  kWholeNewlineRuns = 32768,   // a piece of new lines only is taken as it is where the vocabulary has it
  kPrefixUnlessSpace = 16384,  // the space prefix is left out where the text begins with one
};

enum Model : uint32_t {
  kByteLevelBpe = 1,  // symbols are bytes, merges have ranks
  kCharBpe = 2,       // symbols are characters, merges have ranks (tokenizer.json of SPM-like models)
  kSpm = 3,           // symbols are characters, any pair whose text is a token may merge, best score first
  kUnigram = 4,       // best sum of scores
};

enum TokenAttribute : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 4,
  kUserDefined = 8,
  kUnused = 16,
  kByte = 32,
  kLeftStrip = 64,    // an added token that swallows white space before it
  kRightStrip = 128,  // ... after it
};

struct StringRef {
  uint32_t offset;
  uint32_t bytes;
};

// One pass of the pre-tokenizer; each splits the pieces that the pass before left. `kind` is a text::SplitKind
// (split_rules.h).
struct Step {
  uint32_t kind;
  uint32_t behavior;  // for kPattern: SplitBehavior
  StringRef pattern;  // for kPattern: a PCRE2 pattern
};

struct MergeSlot {  // open addressing; left == kNone: empty
  uint32_t left;
  uint32_t right;
  uint32_t rank;
  uint32_t result;
};
struct HashSlot {  // open addressing over token bytes; id == kNone: empty
  uint32_t id;
  uint32_t tag;  // upper half of the hash
};
struct TrieNode {
  uint32_t first_edge;
  uint32_t n_edges;
  uint32_t token;  // kNone: no added token ends here
};
struct TrieEdge {
  uint32_t byte;
  uint32_t node;
};

enum Section : uint32_t {
  kOffsets,
  kTokenBytes,
  kAttributes,
  kScores,
  kMerges,
  kTokenHash,
  kTrieNodes,
  kTrieEdges,
  kEndOfGeneration,
  kSteps,
  kStrings,
  kSections,
};
struct SectionRef {
  uint64_t offset;
  uint64_t bytes;
};

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t model;
  uint64_t total_bytes;
  uint8_t digest[32];  // SHA-256 of the image with these 32 bytes zero
  uint32_t flags;
  uint32_t n_tokens;
  uint32_t n_symbols;  // tokens and intermediate merge results
  uint32_t bos, eos, eot, unk, pad;
  uint32_t max_token_bytes;
  uint32_t reserved;
  uint32_t byte_tokens[256];
  uint8_t added_first_bytes[32];   // bit set of the bytes that begin an added token
  uint8_t joins_before_space[32];  // bit set of the bytes that stand right before a space inside some symbol
  SectionRef sections[kSections];
};
static_assert(sizeof(Header) == 8 + 4 + 4 + 8 + 32 + 10 * 4 + 1024 + 64 + 11 * 16);

// The hash of a token's bytes (FNV-1a, 64 bit, finished by a multiply-shift so that low and high halves are both
// usable).
inline uint64_t hash_bytes(const uint8_t* data, uint64_t size) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (uint64_t i = 0; i < size; ++i) h = (h ^ data[i]) * 0x100000001b3ull;
  h ^= h >> 32;
  h *= 0x9e3779b97f4a7c15ull;
  return h ^ (h >> 29);
}
inline uint64_t hash_pair(uint32_t left, uint32_t right) {
  uint64_t h = (uint64_t{left} << 32 | right) * 0x9e3779b97f4a7c15ull;
  return h ^ (h >> 32);
}

}  // namespace tie::text::image
