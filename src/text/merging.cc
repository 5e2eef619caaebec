#include "text/merging.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "text/unicode.h"

namespace tie::text {
namespace {

constexpr uint32_t kEnd = 0xffffffff;
constexpr size_t kFewSymbols = 24;  // up to here a plain scan beats the heap
// How much worse than the worst piece an unknown character is (the value that unigram models were trained with).
constexpr double kUnknownPenalty = 10.0;

// Orders scores descending as an ascending integer, then the position.
uint64_t score_order(float score, uint32_t position) {
  const auto bits = std::bit_cast<uint32_t>(score);
  const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t{~ascending} << 32 | position;
}

}  // namespace

void Merger::push(const Candidate& candidate) {
  heap_.push_back(candidate);
  std::push_heap(heap_.begin(), heap_.end(), [](const Candidate& a, const Candidate& b) { return a.order > b.order; });
}

Merger::Candidate Merger::pop() {
  std::pop_heap(heap_.begin(), heap_.end(), [](const Candidate& a, const Candidate& b) { return a.order > b.order; });
  const Candidate out = heap_.back();
  heap_.pop_back();
  return out;
}

void Merger::link(size_t count) {
  for (size_t i = 0; i < count; ++i) {
    nodes_[i].previous = i == 0 ? kEnd : static_cast<uint32_t>(i - 1);
    nodes_[i].next = i + 1 == count ? kEnd : static_cast<uint32_t>(i + 1);
  }
  heap_.clear();
}

void Merger::unlink_right_of(uint32_t left) {
  const uint32_t right = nodes_[left].next;
  nodes_[left].next = nodes_[right].next;
  if (nodes_[right].next != kEnd) nodes_[nodes_[right].next].previous = left;
  nodes_[right].symbol = kEnd;
  nodes_[right].length = 0;
}

// Symbols in symbols_, merged in place: the lowest rank first, leftmost among equals.
void Merger::merge_few() {
  ranks_.resize(symbols_.size());
  const auto rank_at = [this](size_t i) {
    if (i + 1 >= symbols_.size()) return kEnd;
    const auto merge = vocab_.merge(symbols_[i], symbols_[i + 1]);
    return merge ? merge->rank : kEnd;
  };
  for (size_t i = 0; i < symbols_.size(); ++i) ranks_[i] = rank_at(i);
  while (symbols_.size() > 1) {
    const auto best = static_cast<size_t>(std::min_element(ranks_.begin(), ranks_.end()) - ranks_.begin());
    if (ranks_[best] == kEnd) return;
    symbols_[best] = vocab_.merge(symbols_[best], symbols_[best + 1])->result;
    symbols_.erase(symbols_.begin() + static_cast<ptrdiff_t>(best) + 1);
    ranks_.erase(ranks_.begin() + static_cast<ptrdiff_t>(best) + 1);
    ranks_[best] = rank_at(best);
    if (best > 0) ranks_[best - 1] = rank_at(best - 1);
  }
}

void Merger::push_ranked(uint32_t left) {
  if (left == kEnd || nodes_[left].next == kEnd) return;
  const uint32_t right_symbol = nodes_[nodes_[left].next].symbol;
  const auto merge = vocab_.merge(nodes_[left].symbol, right_symbol);
  if (merge) push({uint64_t{merge->rank} << 32 | left, left, right_symbol, nodes_[left].symbol, merge->result});
}

void Merger::merge_many() {
  nodes_.resize(symbols_.size());
  for (size_t i = 0; i < symbols_.size(); ++i) nodes_[i].symbol = symbols_[i];
  link(symbols_.size());
  for (uint32_t i = 0; i + 1 < nodes_.size(); ++i) push_ranked(i);
  while (!heap_.empty()) {
    const Candidate best = pop();
    Node& left = nodes_[best.left];
    if (left.symbol != best.check_left || left.next == kEnd || nodes_[left.next].symbol != best.check) continue;
    left.symbol = best.result;
    unlink_right_of(best.left);
    push_ranked(left.previous);
    push_ranked(best.left);
  }
  symbols_.clear();
  for (uint32_t i = 0; i != kEnd; i = nodes_[i].next) symbols_.push_back(nodes_[i].symbol);
}

void Merger::emit_bytes(std::string_view bytes, std::vector<TokenId>& out) {
  for (char c : bytes) {
    if (auto id = vocab_.byte_token(static_cast<uint8_t>(c)))
      out.push_back(*id);
    else if (auto unk = vocab_.unk())
      out.push_back(*unk);
  }
}

void Merger::emit_symbols(std::vector<TokenId>& out) {
  for (uint32_t symbol : symbols_) {
    if (symbol < vocab_.size())
      out.push_back(static_cast<TokenId>(symbol));
    else
      emit_bytes(as_text(vocab_.symbol_bytes(symbol)), out);
  }
}

void Merger::byte_level(std::string_view piece, std::vector<TokenId>& out) {
  if (piece.empty()) return;
  symbols_.clear();
  const auto& byte_symbols = vocab_.header().byte_tokens;
  for (char c : piece) symbols_.push_back(byte_symbols[static_cast<uint8_t>(c)]);
  symbols_.size() <= kFewSymbols ? merge_few() : merge_many();
  emit_symbols(out);
}

void Merger::append_character(std::string_view character) {
  if (auto id = vocab_.find(as_bytes(character))) return symbols_.push_back(static_cast<uint32_t>(*id));
  if (vocab_.header().flags & image::kByteFallback) {
    bool all = true;
    for (char c : character) all = all && vocab_.byte_token(static_cast<uint8_t>(c));
    if (all) {
      for (char c : character) symbols_.push_back(static_cast<uint32_t>(*vocab_.byte_token(static_cast<uint8_t>(c))));
      return;
    }
  }
  const auto unk = vocab_.unk();
  if (!unk) return;
  const auto symbol = static_cast<uint32_t>(*unk);
  if ((vocab_.header().flags & image::kFuseUnknown) && !symbols_.empty() && symbols_.back() == symbol) return;
  symbols_.push_back(symbol);
}

void Merger::characters(std::string_view piece, std::vector<TokenId>& out) {
  symbols_.clear();
  for (size_t at = 0; at < piece.size();) {
    const size_t bytes = decode_utf8(piece.substr(at)).bytes;
    append_character(piece.substr(at, bytes));
    at += bytes;
  }
  if (symbols_.empty()) return;
  symbols_.size() <= kFewSymbols ? merge_few() : merge_many();
  emit_symbols(out);
}

void Merger::push_scored(std::string_view piece, uint32_t left) {
  if (left == kEnd || nodes_[left].next == kEnd) return;
  const uint32_t length = nodes_[left].length + nodes_[nodes_[left].next].length;
  const auto id = vocab_.find(as_bytes(piece.substr(nodes_[left].begin, length)));
  if (id) push({score_order(static_cast<float>(vocab_.score(*id)), left), left, length, nodes_[left].length, 0});
}

void Merger::scored(std::string_view piece, std::vector<TokenId>& out) {
  nodes_.clear();
  for (size_t at = 0; at < piece.size();) {
    const uint32_t bytes = decode_utf8(piece.substr(at)).bytes;
    nodes_.push_back({0, 0, 0, static_cast<uint32_t>(at), bytes});
    at += bytes;
  }
  if (nodes_.empty()) return;
  if (nodes_.size() <= kFewSymbols) {
    score_few(piece);
    for (const Node& node : nodes_) emit_text(piece.substr(node.begin, node.length), out);
    return;
  }
  link(nodes_.size());
  for (uint32_t i = 0; i + 1 < nodes_.size(); ++i) push_scored(piece, i);
  while (!heap_.empty()) {
    const Candidate best = pop();
    Node& left = nodes_[best.left];
    if (left.length != best.check_left || left.next == kEnd || left.length + nodes_[left.next].length != best.check)
      continue;
    left.length = best.check;
    unlink_right_of(best.left);
    push_scored(piece, left.previous);
    push_scored(piece, best.left);
  }
  for (uint32_t i = 0; i != kEnd; i = nodes_[i].next) emit_text(piece.substr(nodes_[i].begin, nodes_[i].length), out);
}

void Merger::emit_text(std::string_view text, std::vector<TokenId>& out) {
  if (auto id = vocab_.find(as_bytes(text)))
    out.push_back(*id);
  else
    emit_bytes(text, out);
}

// The scored merge by plain scanning: the best pair first, leftmost among equals.
void Merger::score_few(std::string_view piece) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  float scores[kFewSymbols];
  const auto score_at = [&](size_t i) {
    if (i + 1 >= nodes_.size()) return kNever;
    const auto id = vocab_.find(as_bytes(piece.substr(nodes_[i].begin, nodes_[i].length + nodes_[i + 1].length)));
    return id ? std::max(static_cast<float>(vocab_.score(*id)), std::numeric_limits<float>::lowest()) : kNever;
  };
  for (size_t i = 0; i < nodes_.size(); ++i) scores[i] = score_at(i);
  while (nodes_.size() > 1) {
    const auto best = static_cast<size_t>(std::max_element(scores, scores + nodes_.size()) - scores);
    if (!(scores[best] > kNever)) return;
    nodes_[best].length += nodes_[best + 1].length;
    nodes_.erase(nodes_.begin() + static_cast<ptrdiff_t>(best) + 1);
    std::copy(scores + best + 2, scores + nodes_.size() + 1, scores + best + 1);
    scores[best] = score_at(best);
    if (best > 0) scores[best - 1] = score_at(best - 1);
  }
}

double Merger::worst_score() {
  if (!worst_score_) {
    double worst = 0;
    for (uint32_t id = 0; id < vocab_.size(); ++id) worst = std::min(worst, vocab_.score(static_cast<TokenId>(id)));
    worst_score_ = worst;
  }
  return *worst_score_;
}

void Merger::unigram(std::string_view piece, std::vector<TokenId>& out) {
  struct Best {
    double score = -std::numeric_limits<double>::infinity();
    uint32_t from = 0;
    TokenId id = -1;  // -1: an unknown character
  };
  const double worst = worst_score();
  std::vector<Best> best(piece.size() + 1);
  best[0].score = 0;
  for (size_t at = 0; at < piece.size();) {
    const size_t character = decode_utf8(piece.substr(at)).bytes;
    const size_t longest = std::min<size_t>(piece.size() - at, vocab_.header().max_token_bytes);
    bool whole_character = false;
    for (size_t length = character; length <= longest;
         length += length < longest ? decode_utf8(piece.substr(at + length)).bytes : 1) {
      const auto id = vocab_.find(as_bytes(piece.substr(at, length)));
      if (!id) continue;
      whole_character |= length == character;
      const double score = best[at].score + vocab_.score(*id);
      if (score > best[at + length].score) best[at + length] = {score, static_cast<uint32_t>(at), *id};
    }
    const double unknown = best[at].score + worst - kUnknownPenalty;
    if (!whole_character && unknown > best[at + character].score)
      best[at + character] = {unknown, static_cast<uint32_t>(at), -1};
    at += character;
  }
  std::vector<std::pair<uint32_t, uint32_t>> path;
  for (auto at = static_cast<uint32_t>(piece.size()); at > 0; at = best[at].from) path.emplace_back(best[at].from, at);
  bool after_unknown = false;
  for (auto step = path.rbegin(); step != path.rend(); ++step) {
    const Best& here = best[step->second];
    const bool unknown = here.id < 0;
    if (!unknown)
      out.push_back(here.id);
    else if (vocab_.header().flags & image::kByteFallback)
      emit_bytes(piece.substr(step->first, step->second - step->first), out);
    else if (vocab_.unk() && !after_unknown)
      out.push_back(*vocab_.unk());
    after_unknown = unknown;
  }
}

}  // namespace tie::text
