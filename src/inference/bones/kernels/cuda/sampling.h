// The end of a step on the GPU: soft cap and grammar mask on the logits, arg-max and the best k of each row, so that
// ids and a few logits go back to the CPU instead of rows of the vocabulary. Order as in ops/best_ids.h: larger value
// first, then the smaller id; NaN counts as minus infinity.
#pragma once
#include "inference/bones/kernels/cuda/device.h"

namespace tie::bones::cuda {

inline constexpr uint32_t kSampleThreads = 256;
inline constexpr uint32_t kSampleSharedBytes = (kSampleThreads / 32) * 8 + 8;
inline constexpr float kLowest = -3.402823466e38f;

struct FinishLogitsArgs {
  float* logits = nullptr;          // [rows][stride]
  const uint32_t* masks = nullptr;  // null, or [rows][mask_words]: bit 0 of word 0 is id 0; 0 forbids
  uint32_t n_vocab = 0, stride = 0, mask_words = 0;
  float soft_cap = 0;
};

// Grid: x = runs of 256 ids, y = rows.
template <typename Block>
TIE_DEVICE void finish_logits(Block& b, const FinishLogitsArgs& a) {
  const uint32_t id = b.block_x() * kSampleThreads + b.thread();
  if (id >= a.n_vocab) return;
  float* logit = a.logits + uint64_t{b.block_y()} * a.stride + id;
  const bool allowed = !a.masks || ((a.masks[uint64_t{b.block_y()} * a.mask_words + id / 32] >> (id % 32)) & 1u) != 0;
  const float v = a.soft_cap > 0 ? a.soft_cap * tanhf(*logit / a.soft_cap) : *logit;
  *logit = allowed ? v : as_float(0xff800000u);
}

// The best of a row are found in two steps, so that the GPU is full: each block finds those of a run of ids, then one
// block of a row finds those of the runs' candidates.
inline constexpr uint32_t kTopKRun = 2048;

struct TopKArgs {
  const float* logits = nullptr;
  const uint32_t* below = nullptr;  // null, or for each row: only ids below it; 0: nothing of this row
  uint32_t* ids = nullptr;          // [rows][runs][k]; 0xffffffff where there are no more
  float* values = nullptr;          // the same
  uint32_t n_vocab = 0, stride = 0, first_id = 0, k = 1, runs = 1;
};

struct MergeTopKArgs {
  const uint32_t* from_ids = nullptr;  // [rows][candidates]
  const float* from_values = nullptr;
  uint32_t* ids = nullptr;  // [rows][k]
  float* values = nullptr;
  uint32_t candidates = 0, k = 1;
};

// Whether (v, id) comes before (w, other).
TIE_DEVICE bool ranks_before(float v, uint32_t id, float w, uint32_t other) {
  return v > w || (v == w && id < other);
}

inline constexpr uint32_t kNone = 0xffffffffu;

struct Ranked {
  float value = 0;
  uint32_t id = kNone;
};

// The first of all threads' candidates; every thread gets it. `offset`: kSampleSharedBytes of shared memory.
template <typename Block>
TIE_DEVICE Ranked first_of_block(Block& b, Ranked best, uint32_t offset) {
  const uint32_t warps = b.threads() / kWarp;
  auto values = b.template shared<float>(offset, warps + 1);
  auto ids = b.template shared<uint32_t>(offset + (warps + 1) * 4, warps + 1);
  for (uint32_t mask = 16; mask != 0; mask >>= 1) {
    const float v = b.shuffle_xor(best.value, mask);
    const uint32_t other = b.shuffle_xor(best.id, mask);
    if (other != kNone && (best.id == kNone || ranks_before(v, other, best.value, best.id))) best = {v, other};
  }
  b.sync();
  if (b.thread() % kWarp == 0) values[b.thread() / kWarp] = best.value, ids[b.thread() / kWarp] = best.id;
  b.sync();
  if (b.thread() == 0) {
    for (uint32_t warp = 1; warp < warps; ++warp) {
      const float v = values[warp];
      const uint32_t other = ids[warp];
      if (other != kNone && (best.id == kNone || ranks_before(v, other, best.value, best.id))) best = {v, other};
    }
    values[warps] = best.value, ids[warps] = best.id;
  }
  b.sync();
  return {values[warps], ids[warps]};
}

// What first_after takes of an array: the i-th has the id first_id + i.
TIE_DEVICE auto numbers_of(const float* from, uint32_t first_id) {
  return [=](uint32_t i) { return Ranked{from[i] == from[i] ? fmaxf(from[i], kLowest) : kLowest, first_id + i}; };
}

// The first of n numbers after `past` (its id kNone: of all). at(i): the i-th with its id, kNone: there is none.
template <typename Block, typename At>
TIE_DEVICE Ranked first_after(Block& b, uint32_t n, Ranked past, At at, uint32_t offset) {
  Ranked best;
  for (uint32_t i = b.thread(); i < n; i += b.threads()) {
    const Ranked x = at(i);
    if (x.id == kNone) continue;
    if (past.id != kNone && !ranks_before(past.value, past.id, x.value, x.id)) continue;
    if (best.id == kNone || ranks_before(x.value, x.id, best.value, best.id)) best = x;
  }
  return first_of_block(b, best, offset);
}

// The first k of n numbers, one after another.
template <typename Block, typename At>
TIE_DEVICE void first_k(Block& b, uint32_t n, At at, uint32_t k, uint32_t* ids, float* values) {
  Ranked past;
  bool more = n != 0;
  for (uint32_t rank = 0; rank < k; ++rank) {
    if (more) past = first_after(b, n, past, at, 0);
    more = more && past.id != kNone;
    if (b.thread() != 0) continue;
    ids[rank] = more ? past.id : kNone;
    values[rank] = more ? past.value : kLowest;
  }
}

// Grid: x = runs of kTopKRun ids, y = rows.
template <typename Block>
TIE_DEVICE void top_k(Block& b, const TopKArgs& a) {
  const uint32_t first = b.block_x() * kTopKRun, row = b.block_y();
  uint32_t end = a.n_vocab;
  if (a.below)
    end = a.below[row] > a.first_id ? (a.below[row] - a.first_id < end ? a.below[row] - a.first_id : end) : 0;
  const uint32_t n = end > first ? (end - first < kTopKRun ? end - first : kTopKRun) : 0;
  const float* logits = a.logits + uint64_t{row} * a.stride + first;
  const uint64_t out = (uint64_t{row} * a.runs + b.block_x()) * a.k;
  first_k(b, n, numbers_of(logits, a.first_id + first), a.k, a.ids + out, a.values + out);
}

// Grid: rows.
template <typename Block>
TIE_DEVICE void merge_top_k(Block& b, const MergeTopKArgs& a) {
  const uint64_t row = b.block_x();
  const uint32_t* ids = a.from_ids + row * a.candidates;
  const float* values = a.from_values + row * a.candidates;
  auto at = [=](uint32_t i) { return Ranked{values[i], ids[i]}; };
  first_k(b, a.candidates, at, a.k, a.ids + row * a.k, a.values + row * a.k);
}

}  // namespace tie::bones::cuda
