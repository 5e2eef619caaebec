// The best ids of a row of logits: passes over the row, vectorised for the instruction set found at start, and the
// merging of what several threads or ranks found in their columns. Larger value first, then the lower id. NaN counts as
// minus infinity, and neither is ever found. Pure functions; they allocate only where a vector is too small.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "inference/bones/best_of.h"

namespace tie::bones {

inline bool better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// -infinity for an empty row or one without a number.
float max_of(std::span<const float> row);

// The lowest index that holds the maximum; -1 when no element is above -infinity.
int32_t argmax_of(std::span<const float> row);

// row[i] = -infinity wherever bit first_bit + i of mask (32 bits a word, lowest first) is 0 or missing.
void apply_mask(std::span<float> row, std::span<const uint32_t> mask, size_t first_bit = 0);

inline constexpr size_t kGroup = 64;

// The maximum of each started group of kGroup elements. (A group with NaN may be told too low.)
void group_maxima(std::span<const float> row, std::vector<float>& out);

// Appends the elements in (low, high] from index `from` on, in order, while `out` surely stays within `most` elements.
// Returns where to go on; row.size() when done.
size_t collect_between(std::span<const float> row, size_t from, float low, float high, size_t most,
                       std::vector<Candidate>& out);

struct TopScratch {
  // For select_top of up to `k` of rows of up to `row_size`.
  void reserve(size_t row_size, size_t k);
  std::vector<Candidate> candidates;
  std::vector<float> maxima;
};

// The k best of the row, best first; fewer when the row has fewer. Uses and returns scratch.candidates.
std::span<const Candidate> select_top(std::span<const float> row, size_t k, TopScratch& scratch);

// What the compute threads of a model, or of all its tensor ranks, found in their columns: a list of each for each row.
struct BestTable {
  Candidate* entries = nullptr;  // [list][row][kMostBest]
  uint32_t* counts = nullptr;    // [list][row]
  uint32_t lists = 0, max_rows = 0;

  Candidate* list(uint32_t i, uint32_t row) const { return entries + (uint64_t{i} * max_rows + row) * kMostBest; }
  uint32_t& count(uint32_t i, uint32_t row) const { return counts[uint64_t{i} * max_rows + row]; }
};

// The best k of all lists of a row, into out[k]; returns how many there are. Counts beyond kMostBest are cut: the table
// may be another process's.
uint32_t merge_best(const BestTable& table, uint32_t row, uint32_t k, Candidate* out);
// All rows of a batch, into out[row][kMostBest] and counts[row].
BestRows merge_best(const BestTable& table, std::span<const BestOf> wants, Candidate* out, uint32_t* counts);

}  // namespace tie::bones
