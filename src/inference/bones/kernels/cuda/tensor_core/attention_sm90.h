// Prefill attention on Hopper: 128 query rows of one head per block, 64 keys at a time. One thread has TMA bring keys
// and values of the paged cache (as they lie there, f16 or bf16) into a ring; two warpgroups of 64 rows each multiply
// by wgmma, with the online softmax in registers between. Heads of 64 and 128. Twin: prefill_attention of attention.h.
#pragma once
#include "inference/bones/kernels/cuda/attention.h"
#include "inference/bones/kernels/cuda/tensor_core/descriptors.h"

namespace tie::bones::cuda {

inline constexpr uint32_t kAttend90Threads = 384, kAttend90Rows = 128, kAttend90Keys = 64, kAttend90Stages = 3;
inline constexpr uint32_t kKeyTileBytes = kAttend90Keys * kTileRowBytes;  // 64 keys by 64 dimensions

struct FastPrefillArgs {
  TensorMap kv_map;  // dimensions: head_dim, token of a block, plane (layer, kv head, K or V), block
  PrefillArgs attention;
  uint32_t first_plane = 0;  // of the layer
};

// Tokens that one box of the map covers.
TIE_DEVICE uint32_t attend90_box_tokens(uint32_t block_tokens) {
  return block_tokens < kAttend90Keys ? block_tokens : kAttend90Keys;
}

template <uint32_t kDim>
struct Attend90 {
  static constexpr uint32_t kChunks = kDim / 64;
  static constexpr uint32_t kStageBytes = 2 * kChunks * kKeyTileBytes;
  static constexpr uint32_t kQueryChunkBytes = kAttend90Rows * kTileRowBytes;
  static constexpr uint32_t kSharedBytes =
      kAtomBytes + kChunks * kQueryChunkBytes + kAttend90Stages * kStageBytes + 2 * kAttend90Stages * 8;
  uint32_t base;
  TIE_DEVICE uint32_t query(uint32_t chunk) const { return base + chunk * kQueryChunkBytes; }
  TIE_DEVICE uint32_t key(uint32_t stage, uint32_t chunk) const {
    return query(kChunks) + stage * kStageBytes + chunk * kKeyTileBytes;
  }
  TIE_DEVICE uint32_t value(uint32_t stage, uint32_t chunk) const { return key(stage, kChunks + chunk); }
  TIE_DEVICE uint32_t full(uint32_t stage) const { return key(kAttend90Stages, 0) + stage * 8; }
  TIE_DEVICE uint32_t empty(uint32_t stage) const { return full(kAttend90Stages) + stage * 8; }
};

// Which rows and keys a block works on.
struct AttendRange {
  PrefillSpan span;
  uint32_t row0, kv_head, begin, end;  // keys [begin, end), begin on a tile
  const uint32_t* table;
};

template <typename Block>
TIE_DEVICE AttendRange attend_range(Block& b, const PrefillArgs& a) {
  AttendRange r;
  r.span = a.spans[b.block_z()];
  r.row0 = (b.blocks_x() - 1 - b.block_x()) * kAttend90Rows;  // the longest first
  r.kv_head = b.block_y() / (a.n_heads / a.kv.n_kv_heads);
  r.table = a.tables + uint64_t{r.span.sequence} * a.table_stride;
  const uint32_t last = r.row0 + kAttend90Rows < r.span.n_rows ? r.row0 + kAttend90Rows : r.span.n_rows;
  r.end = r.span.first_position + last;
  const uint32_t first_end = r.span.first_position + r.row0 + 1;
  r.begin = (a.window != 0 && first_end > a.window ? first_end - a.window : 0) / kAttend90Keys * kAttend90Keys;
  return r;
}

// One thread. Past the last block of the table its last one comes again: those keys are masked, but must be numbers.
template <uint32_t kDim, typename Block>
TIE_DEVICE void fetch_keys(Block& b, const FastPrefillArgs& a, const AttendRange& r, const Attend90<kDim>& at) {
  const uint32_t tokens = a.attention.kv.block_tokens, box = attend90_box_tokens(tokens);
  const uint32_t plane = a.first_plane + r.kv_head * 2, last_block = (r.end - 1) / tokens;
  uint32_t step = 0;
  for (uint32_t from = r.begin; from < r.end; from += kAttend90Keys, ++step) {
    const uint32_t stage = step % kAttend90Stages;
    b.barrier_wait(at.empty(stage), (step / kAttend90Stages + 1) % 2);
    b.barrier_expect(at.full(stage), Attend90<kDim>::kStageBytes);
    for (uint32_t i = 0; i < kAttend90Keys; i += box) {
      const uint32_t index = (from + i) / tokens, block = r.table[index < last_block ? index : last_block];
      const uint32_t token = (from + i) % tokens;
      for (uint32_t chunk = 0; chunk < Attend90<kDim>::kChunks; ++chunk) {
        const uint32_t to = i * kTileRowBytes;
        b.load_tile(at.key(stage, chunk) + to, a.kv_map, at.full(stage), chunk * 64, token, plane, block);
        b.load_tile(at.value(stage, chunk) + to, a.kv_map, at.full(stage), chunk * 64, token, plane + 1, block);
      }
    }
  }
}

template <bool kBf16>
TIE_DEVICE uint32_t narrow_pair(float low, float high) {
  return kBf16 ? bf16_bits(low) | bf16_bits(high) << 16 : uint32_t{half_bits(low)} | uint32_t{half_bits(high)} << 16;
}

// A warpgroup's 64 query rows to shared memory.
template <uint32_t kDim, bool kBf16, typename Block>
TIE_DEVICE void stage_queries(Block& b, const PrefillArgs& a, const AttendRange& r, const Attend90<kDim>& at,
                              uint32_t half) {
  const uint32_t in_tile = half * 64 + b.thread() % 128 / 2, row = r.row0 + in_tile;
  for (uint32_t piece = b.thread() % 2; piece < kDim / 8; piece += 2) {
    Bytes16 out{};
    if (row < r.span.n_rows) {
      const float* from = a.q + (uint64_t{r.span.first_row + row} * a.n_heads + b.block_y()) * kDim + piece * 8;
      TIE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) out.word[i] = narrow_pair<kBf16>(from[2 * i], from[2 * i + 1]);
    }
    b.store_16(at.query(piece / 8) + swizzled(in_tile, piece % 8), out);
  }
  b.publish_stores();
  b.sync_group(1 + half);
}

// Online softmax of one tile: scores become weights; the state and the sums shrink to the new maximum.
template <uint32_t kDim, typename Block>
TIE_DEVICE void soften(Block& b, const PrefillArgs& a, uint32_t from, uint32_t first_position, float (&score)[32],
                       float (&most)[2], float (&sum)[2], float (&out)[kDim / 2]) {
  constexpr float kLog2E = 1.4426950408889634f;
  const uint32_t lane = b.thread() % kWarp;
  if (a.soft_cap > 0) {
    const float inverse = 1.0f / a.soft_cap;
    TIE_UNROLL
    for (uint32_t i = 0; i < 32; ++i) score[i] = a.soft_cap * tanhf(score[i] * inverse);
  }
  TIE_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {  // this lane's rows: its group, and eight further
    const uint32_t position = first_position + lane / 4 + 8 * half;
    float best = kNegative;
    TIE_UNROLL
    for (uint32_t i = 0; i < 16; ++i) {
      float& s = score[i / 2 * 4 + 2 * half + i % 2];
      const uint32_t key = from + i / 2 * 8 + lane % 4 * 2 + i % 2;
      s *= kLog2E;
      if (key > position || (a.window != 0 && key + a.window <= position)) s = kNegative;
      best = fmaxf(best, s);
    }
    best = fmaxf(best, b.shuffle_xor(best, 1));
    best = fmaxf(best, b.shuffle_xor(best, 2));
    const float now = fmaxf(most[half], best), shrink = fast_exp2(most[half] - now);
    most[half] = now;
    float weights = 0;
    TIE_UNROLL
    for (uint32_t i = 0; i < 16; ++i) {
      float& s = score[i / 2 * 4 + 2 * half + i % 2];
      s = s <= kNegative ? 0.0f : fast_exp2(s - now);
      weights += s;
    }
    weights += b.shuffle_xor(weights, 1);
    weights += b.shuffle_xor(weights, 2);
    sum[half] = sum[half] * shrink + weights;
    TIE_UNROLL
    for (uint32_t i = 0; i < kDim / 4; ++i) out[i / 2 * 4 + 2 * half + i % 2] *= shrink;
  }
}

// A warpgroup's walk over the keys.
template <uint32_t kDim, bool kBf16, typename Block>
TIE_DEVICE void attend_rows(Block& b, const PrefillArgs& a, const AttendRange& r, const Attend90<kDim>& at,
                            uint32_t half) {
  stage_queries<kDim, kBf16>(b, a, r, at, half);
  const uint32_t warp = b.thread() % 128 / kWarp, lane = b.thread() % kWarp;
  const uint32_t first_row = r.row0 + half * 64;
  float out[kDim / 2] = {}, most[2] = {kNegative, kNegative}, sum[2] = {0.0f, 0.0f};
  uint32_t step = 0;
  for (uint32_t from = r.begin; from < r.end; from += kAttend90Keys, ++step) {
    const uint32_t stage = step % kAttend90Stages;
    b.barrier_wait(at.full(stage), step / kAttend90Stages % 2);
    b.sync_warp();
    if (from <= r.span.first_position + first_row + 63) {  // else after all of these rows
      float score[32] = {};
      b.hold(score);
      b.begin_products();
      TIE_UNROLL
      for (uint32_t i = 0; i < kDim / 16; ++i) {
        const uint32_t in_row = i % 4 * kStepBytes, query = at.query(i / 4) + half * 64 * kTileRowBytes;
        b.template multiply<kBf16>(score, wgmma_descriptor(query + in_row, 16),
                                   wgmma_descriptor(at.key(stage, i / 4) + in_row, 16), i != 0);
      }
      b.commit_products();
      b.template wait_products<0>();
      b.hold(score);
      soften<kDim>(b, a, from, r.span.first_position + first_row + warp * 16, score, most, sum, out);
      uint32_t weights[kAttend90Keys / 16][4];  // whole before the products begin: wgmma reads registers when it likes
      TIE_UNROLL
      for (uint32_t i = 0; i < kAttend90Keys / 4; ++i) {
        const float* pair = score + 4 * (i / 4 * 2 + i % 4 / 2) + 2 * (i % 2);
        weights[i / 4][i % 4] = narrow_pair<kBf16>(pair[0], pair[1]);
      }
      b.hold(weights);
      b.hold(out);
      b.sync_warp();
      b.begin_products();
      TIE_UNROLL
      for (uint32_t i = 0; i < kAttend90Keys / 16; ++i)
        b.template multiply_rows<kBf16>(out, weights[i],
                                        wgmma_descriptor(at.value(stage, 0) + i * 16 * kTileRowBytes, kKeyTileBytes));
      b.commit_products();
      b.template wait_products<0>();
      b.hold(weights);
      b.hold(out);
    }
    if (lane == 0) b.barrier_arrive(at.empty(stage));
  }
  TIE_UNROLL
  for (uint32_t half = 0; half < 2; ++half) {
    const uint32_t row = first_row + warp * 16 + lane / 4 + half * 8;
    if (row >= r.span.n_rows) continue;
    const float share = 1.0f / sum[half];
    float* to = a.out + (uint64_t{r.span.first_row + row} * a.n_heads + b.block_y()) * kDim + lane % 4 * 2;
    TIE_UNROLL
    for (uint32_t i = 0; i < kDim / 4; ++i) to[i / 2 * 8 + i % 2] = out[i / 2 * 4 + 2 * half + i % 2] * share;
  }
}

// Grid: x = tiles of 128 rows of the longest span, y = heads, z = spans.
template <uint32_t kDim, typename Block>
TIE_DEVICE void attend_sm90(Block& b, const FastPrefillArgs& a) {
  const AttendRange r = attend_range(b, a.attention);
  if (r.row0 >= r.span.n_rows) return;
  const Attend90<kDim> at{b.shared_base()};
  if (b.thread() == 0) {
    for (uint32_t stage = 0; stage < kAttend90Stages; ++stage) {
      b.barrier_init(at.full(stage), 1);
      b.barrier_init(at.empty(stage), 8);  // warps
    }
    b.publish_barriers();
  }
  b.sync();
  const uint32_t group = b.thread() / 128;
  if (group == 0) {
    if (b.thread() == 0) fetch_keys<kDim>(b, a, r, at);
  } else if (a.attention.kv.element == KvElement::kBf16) {
    attend_rows<kDim, true>(b, a.attention, r, at, group - 1);
  } else {
    attend_rows<kDim, false>(b, a.attention, r, at, group - 1);
  }
}

}  // namespace tie::bones::cuda
