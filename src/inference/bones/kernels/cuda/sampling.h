// The end of a step on the GPU: soft cap and grammar mask on the logits, arg-max and the best k of each row, so that
// ids and a few logits go back to the CPU instead of rows of the vocabulary. Order as in sharded_top_k.h: larger value
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

struct TopKArgs {
  const float* logits = nullptr;
  uint32_t* ids = nullptr;  // [rows][k]; 0xffffffff where there are no more
  float* values = nullptr;  // [rows][k]
  uint32_t n_vocab = 0, stride = 0, first_id = 0, k = 1;
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

// The first of a row's numbers after `past` (its id kNone: of all).
template <typename Block>
TIE_DEVICE Ranked first_after(Block& b, const float* row, uint32_t n, Ranked past, uint32_t offset) {
  Ranked best;
  for (uint32_t i = b.thread(); i < n; i += b.threads()) {
    const float v = row[i] == row[i] ? fmaxf(row[i], kLowest) : kLowest;
    if (past.id != kNone && !ranks_before(past.value, past.id, v, i)) continue;
    if (best.id == kNone || ranks_before(v, i, best.value, best.id)) best = {v, i};
  }
  return first_of_block(b, best, offset);
}

// Grid: rows. One pass over the row for each of the k.
template <typename Block>
TIE_DEVICE void top_k(Block& b, const TopKArgs& a) {
  const float* row = a.logits + uint64_t{b.block_x()} * a.stride;
  Ranked past;
  bool more = true;
  for (uint32_t rank = 0; rank < a.k; ++rank) {
    if (more) past = first_after(b, row, a.n_vocab, past, 0);
    more = more && past.id != kNone;
    if (b.thread() != 0) continue;
    a.ids[uint64_t{b.block_x()} * a.k + rank] = more ? a.first_id + past.id : kNone;
    a.values[uint64_t{b.block_x()} * a.k + rank] = more ? past.value : kLowest;
  }
}

}  // namespace tie::bones::cuda
