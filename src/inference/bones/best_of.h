// Asking a forward pass for the best few ids of a row of logits instead of its values: a sampler that keeps no more
// than the best k needs nothing else, and over ranks or from a GPU they are all that has to travel. Plain data.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

namespace tie::bones {

inline constexpr uint32_t kMostBest = 64;

struct Candidate {
  float logit = 0;
  int32_t token = 0;
};

// What is wanted of one row of logits.
struct BestOf {
  uint32_t k = 0;                  // ids, at most kMostBest; 0: the whole row
  uint32_t below = UINT32_MAX;     // only ids below it (the vocabulary of a model is padded)
  const uint32_t* mask = nullptr;  // null, or mask_words(), lowest bit first: a 0 bit forbids an id

  uint32_t mask_words(uint32_t n_vocab) const { return (std::min(below, n_vocab) + 31) / 32; }
};

// The answers for the rows of a batch: best first, ties by lower id; no entry is NaN or minus infinity, so there may
// be fewer than k.
struct BestRows {
  const Candidate* entries = nullptr;  // [row][kMostBest]
  const uint32_t* counts = nullptr;    // [row]; of a row that was wanted whole: 0
  std::span<const Candidate> row(uint32_t i) const { return {entries + uint64_t{i} * kMostBest, counts[i]}; }
};

}  // namespace tie::bones
