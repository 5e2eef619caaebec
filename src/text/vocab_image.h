// The flat vocabulary image: everything a tokenizer needs, as one relocatable byte string (offsets, no pointers),
// compiled once from a GGUF file or a Hugging Face tokenizer.json and mapped read-only by every request process.
// Threads: a Vocab is immutable and may be shared. Owns: nothing; the bytes (a mapping, a Bytes) must outlive it and
// every view it gives. Limits: open() checks the header and that every section lies inside the image (microseconds, no
// pass over the data); every later access is clamped to its section, so a hostile image gives wrong ids at worst, never
// a read outside. verify_digest() is the full check.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "text/vocab_layout.h"

namespace tie::text {

using TokenId = int32_t;

class Vocab {
 public:
  // kCorrupt names what is wrong with the image. Cost: well under 200 us.
  static Result<Vocab> open(ByteView image);
  // Compares the SHA-256 that the compiler stored. Cost: one pass over the image.
  Result<void> verify_digest() const;

  ByteView image() const { return image_; }
  // Tokens of the vocabulary; the model's embedding may have more rows (padding), whose ids must never be sampled.
  uint32_t size() const { return header().n_tokens; }
  const image::Header& header() const { return *reinterpret_cast<const image::Header*>(image_.data()); }

  std::optional<TokenId> bos() const { return optional_id(header().bos); }
  std::optional<TokenId> eos() const { return optional_id(header().eos); }
  std::optional<TokenId> eot() const { return optional_id(header().eot); }
  std::optional<TokenId> unk() const { return optional_id(header().unk); }
  std::optional<TokenId> pad() const { return optional_id(header().pad); }
  bool add_bos() const { return header().flags & image::kAddBos; }
  bool add_eos() const { return header().flags & image::kAddEos; }

  // Every id that ends a generation, ascending (eos, eot and the known end-of-turn tokens of the vocabulary).
  std::span<const uint32_t> end_of_generation() const { return eog_; }
  bool is_end_of_generation(TokenId id) const;
  // Control tokens: never produced from user text, never shown as text.
  bool is_control(TokenId id) const { return attributes(id) & (image::kControl | image::kUnknown); }
  // image::TokenAttribute bits; 0 for an id outside the vocabulary.
  uint8_t attributes(TokenId id) const;
  // The bytes that the token stands for in text (a byte token: its one byte; a control token: its literal text). Empty
  // outside the vocabulary.
  ByteView token_bytes(TokenId id) const;
  double score(TokenId id) const;
  // The ordinary (not control, unknown, unused) token with exactly these bytes.
  std::optional<TokenId> find(ByteView bytes) const;
  // Any token, control ones included, by its literal text.
  std::optional<TokenId> find_any(std::string_view text) const;
  std::optional<TokenId> byte_token(uint8_t byte) const { return optional_id(header().byte_tokens[byte]); }

  struct Merge {
    uint32_t rank;
    uint32_t result;
  };
  // nullopt when the pair does not merge.
  std::optional<Merge> merge(uint32_t left, uint32_t right) const;
  // Bytes of a symbol: a token or an intermediate merge result (ids from size() on).
  ByteView symbol_bytes(uint32_t symbol) const;

  struct AddedMatch {
    uint32_t id;
    uint32_t length;
  };
  // The longest added token at the start of `text` whose attributes meet `wanted` (image::TokenAttribute bits, any of
  // them).
  std::optional<AddedMatch> match_added(std::string_view text, uint8_t wanted) const;
  // A walk through the added tokens, byte by byte, from node 0. step(): the next node, or nullopt when no added token
  // goes on like this.
  std::optional<uint32_t> step(uint32_t node, uint8_t byte) const;
  // Whether a control token ends exactly here.
  bool ends_control(uint32_t node) const;
  // Whether any added token begins with this byte: lets a scanner skip quickly.
  bool starts_added(uint8_t byte) const { return header().added_first_bytes[byte >> 3] & (1u << (byte & 7)); }

  std::span<const image::Step> steps() const { return steps_; }
  std::string_view string(image::StringRef ref) const;

 private:
  std::optional<TokenId> optional_id(uint32_t id) const {
    return id < header().n_tokens ? std::optional<TokenId>(static_cast<TokenId>(id)) : std::nullopt;
  }
  ByteView image_;
  std::span<const uint32_t> offsets_;
  ByteView bytes_;
  ByteView attributes_;
  std::span<const float> scores_;           // SPM
  std::span<const double> precise_scores_;  // unigram: sums must round as in the library the model was made with
  std::span<const image::MergeSlot> merges_;
  std::span<const image::HashSlot> hash_;
  std::span<const image::TrieNode> trie_nodes_;
  std::span<const image::TrieEdge> trie_edges_;
  std::span<const uint32_t> eog_;
  std::span<const image::Step> steps_;
  ByteView strings_;
};

}  // namespace tie::text
