// The three ways from a piece of text to tokens: ranked merges (BPE), scored merges (SPM), best path (unigram).
// All loops; time n log n in the piece's length. A Merger is scratch space for one thread; `vocab` must outlive it.
#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "text/vocab_image.h"

namespace tie::text {

class Merger {
 public:
  explicit Merger(const Vocab& vocab) : vocab_(vocab) {}

  // Bytes as symbols, merged by rank.
  void byte_level(std::string_view piece, std::vector<TokenId>& out);
  // Characters as symbols, merged by rank; characters without a token become byte tokens or the unknown token.
  void characters(std::string_view piece, std::vector<TokenId>& out);
  // Characters as symbols; any neighbours whose joined text is a token may merge, best score first, then leftmost.
  void scored(std::string_view piece, std::vector<TokenId>& out);
  // The segmentation with the best sum of scores.
  void unigram(std::string_view piece, std::vector<TokenId>& out);

 private:
  struct Node {
    uint32_t previous, next;
    uint32_t symbol;         // ranked merges
    uint32_t begin, length;  // scored merges
  };
  struct Candidate {
    uint64_t order;  // smaller first
    uint32_t left;
    uint32_t check;  // the right symbol, or the joined length: tells an outdated candidate
    uint32_t check_left;
    uint32_t result;
  };
  void merge_few();
  void score_few(std::string_view piece);
  void emit_text(std::string_view text, std::vector<TokenId>& out);
  void merge_many();
  void push_ranked(uint32_t left);
  void push_scored(std::string_view piece, uint32_t left);
  void push(const Candidate& candidate);
  Candidate pop();
  void link(size_t count);
  void unlink_right_of(uint32_t left);
  void emit_symbols(std::vector<TokenId>& out);
  void emit_bytes(std::string_view bytes, std::vector<TokenId>& out);
  void append_character(std::string_view character);

  double worst_score();
  const Vocab& vocab_;
  std::optional<double> worst_score_;
  std::vector<uint32_t> symbols_;
  std::vector<uint32_t> ranks_;
  std::vector<Node> nodes_;
  std::vector<Candidate> heap_;
};

}  // namespace tie::text
