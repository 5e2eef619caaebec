// A mixture of experts on the GPU: a row's experts are chosen from the router's logits, (row, expert) pairs are grouped
// by expert so that each group is a product of its own (gemm_expert), outputs are added in the order of choice. Nothing
// goes to the CPU: tables of groups lie in GPU memory, and a captured step serves any choice. Numbers as in
// model/experts.h. A slot is a pair's place among the grouped ones.
#pragma once
#include "inference/bones/kernels/cuda/gemm.h"
#include "inference/bones/kernels/cuda/pointwise.h"
#include "inference/bones/kernels/cuda/sampling.h"

namespace tie::bones::cuda {

inline constexpr uint32_t kMostExperts = 1024;  // as kMaxExperts
inline constexpr uint32_t kGroupThreads = 256;
inline constexpr uint32_t kGroupSharedBytes = 3 * (kMostExperts + 1) * 4;
inline constexpr uint32_t kRouteSharedBytes = 128 + kSampleSharedBytes;

// Tiles that `pairs` pairs may need.
TIE_DEVICE uint32_t most_expert_tiles(uint32_t pairs, uint32_t n_experts) {
  return pairs / kGemmTile + (n_experts < pairs ? n_experts : pairs);
}

struct RouteArgs {
  const float* logits = nullptr;  // [rows][stride]
  uint32_t* chosen = nullptr;     // [rows][used], likeliest first; of equals the smaller number
  float* weight = nullptr;        // [rows][used]
  uint32_t n_experts = 0, stride = 0, used = 0;
  uint32_t normalise = 0;  // weights of a row to a sum of 1
};

// Grid: rows.
template <typename Block>
TIE_DEVICE void route(Block& b, const RouteArgs& a) {
  const float* logits = a.logits + uint64_t{b.block_x()} * a.stride;
  uint32_t* chosen = a.chosen + uint64_t{b.block_x()} * a.used;
  float* weight = a.weight + uint64_t{b.block_x()} * a.used;
  Ranked past;
  float largest = 0, total = 0, of_chosen = 0;
  for (uint32_t j = 0; j < a.used; ++j) {
    past = first_after(b, a.n_experts, past, numbers_of(logits, 0), 128);
    if (j == 0) {
      largest = past.value;
      for (uint32_t e = b.thread(); e < a.n_experts; e += kRowThreads) total += expf(logits[e] - largest);
      total = block_sum(b, total, 0);
    }
    const float own = expf(past.value - largest) / total;
    of_chosen += own;
    if (b.thread() == 0) chosen[j] = past.id, weight[j] = own;
  }
  if (!a.normalise || b.thread() != 0) return;
  for (uint32_t j = 0; j < a.used; ++j) weight[j] /= of_chosen;
}

struct GroupArgs {
  const uint32_t* chosen = nullptr;  // [pairs]
  uint32_t* slot = nullptr;          // [pairs]
  uint32_t* slot_row = nullptr;      // [pairs]: the row of a slot
  ExpertTile* tiles = nullptr;       // [max_tiles], those that are not needed empty
  uint32_t pairs = 0, used = 0, n_experts = 0, max_tiles = 0;
};

// One block. Each thread walks all pairs for its own experts, so that slots keep the order of rows.
template <typename Block>
TIE_DEVICE void group_experts(Block& b, const GroupArgs& a) {
  auto counts = b.template shared<uint32_t>(0, kMostExperts + 1);
  auto first_slot = b.template shared<uint32_t>((kMostExperts + 1) * 4, kMostExperts + 1);
  auto first_tile = b.template shared<uint32_t>((kMostExperts + 1) * 8, kMostExperts + 1);
  for (uint32_t e = b.thread(); e < a.n_experts; e += kGroupThreads) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < a.pairs; ++i) n += a.chosen[i] == e ? 1 : 0;
    counts[e] = n;
  }
  b.sync();
  if (b.thread() == 0) {
    uint32_t slots = 0, tiles = 0;
    for (uint32_t e = 0; e <= a.n_experts; ++e) {
      first_slot[e] = slots;
      first_tile[e] = tiles;
      if (e == a.n_experts) break;
      const uint32_t n = counts[e];
      slots += n;
      tiles += (n + kGemmTile - 1) / kGemmTile;
    }
  }
  b.sync();
  for (uint32_t e = b.thread(); e < a.n_experts; e += kGroupThreads) {
    const uint32_t begin = first_slot[e], n = counts[e], tile = first_tile[e];
    for (uint32_t i = 0; i * kGemmTile < n; ++i) {
      const uint32_t left = n - i * kGemmTile;
      a.tiles[tile + i] = {e, begin + i * kGemmTile, left < kGemmTile ? left : kGemmTile};
    }
    uint32_t at = begin;
    for (uint32_t i = 0; n != 0 && i < a.pairs; ++i) {
      if (a.chosen[i] != e) continue;
      a.slot[i] = at;
      a.slot_row[at++] = i / a.used;
    }
  }
  const uint32_t needed = first_tile[a.n_experts];
  for (uint32_t i = needed + b.thread(); i < a.max_tiles; i += kGroupThreads) a.tiles[i] = {0, 0, 0};
}

struct CombineArgs {
  float* x = nullptr;              // [rows][n]
  const float* outputs = nullptr;  // [slots][n]
  const float* weight = nullptr;   // [rows][used]
  const uint32_t* slot = nullptr;  // [rows][used]; null: pairs lie in their own order
  uint32_t n = 0, used = 0;
  uint32_t add = 1;
};

// x += (or with add 0 =) the weighted outputs of the row's experts. Grid: rows.
template <typename Block>
TIE_DEVICE void combine_experts(Block& b, const CombineArgs& a) {
  const uint64_t row = b.block_x();
  for (uint32_t i = b.thread(); i < a.n; i += kRowThreads) {
    float v = a.add ? a.x[row * a.n + i] : 0.0f;
    for (uint32_t j = 0; j < a.used; ++j) {
      const uint64_t pair = row * a.used + j, at = a.slot ? a.slot[pair] : pair;
      v += a.weight[pair] * a.outputs[at * a.n + i];
    }
    a.x[row * a.n + i] = v;
  }
}

}  // namespace tie::bones::cuda
