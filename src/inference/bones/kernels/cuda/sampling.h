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

// Grid: rows. One pass over the row for each of the k.
template <typename Block>
TIE_DEVICE void top_k(Block& b, const TopKArgs& a) {
  constexpr uint32_t kNone = 0xffffffffu, kWarps = kSampleThreads / 32;
  auto values = b.template shared<float>(0, kWarps + 1);
  auto ids = b.template shared<uint32_t>((kWarps + 1) * 4, kWarps + 1);
  const float* row = a.logits + uint64_t{b.block_x()} * a.stride;
  float past_value = 0;
  uint32_t past = kNone;
  for (uint32_t rank = 0; rank < a.k; ++rank) {
    float best = 0;
    uint32_t id = kNone;
    for (uint32_t i = b.thread(); i < a.n_vocab; i += kSampleThreads) {
      const float v = row[i] == row[i] ? fmaxf(row[i], kLowest) : kLowest;
      if (rank != 0 && !ranks_before(past_value, past, v, i)) continue;
      if (id == kNone || ranks_before(v, i, best, id)) best = v, id = i;
    }
    for (uint32_t mask = 16; mask != 0; mask >>= 1) {
      const float v = b.shuffle_xor(best, mask);
      const uint32_t other = b.shuffle_xor(id, mask);
      if (other != kNone && (id == kNone || ranks_before(v, other, best, id))) best = v, id = other;
    }
    b.sync();
    if (b.thread() % 32 == 0) values[b.thread() / 32] = best, ids[b.thread() / 32] = id;
    b.sync();
    if (b.thread() == 0) {
      for (uint32_t warp = 1; warp < kWarps; ++warp) {
        const float v = values[warp];
        const uint32_t other = ids[warp];
        if (other != kNone && (id == kNone || ranks_before(v, other, best, id))) best = v, id = other;
      }
      values[kWarps] = best, ids[kWarps] = id;
      a.ids[uint64_t{b.block_x()} * a.k + rank] = id == kNone ? kNone : a.first_id + id;
      a.values[uint64_t{b.block_x()} * a.k + rank] = best;
    }
    b.sync();
    past_value = values[kWarps];
    past = ids[kWarps];
    if (past == kNone) past_value = kLowest;
  }
}

}  // namespace tie::bones::cuda
