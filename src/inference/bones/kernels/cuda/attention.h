// Attention over the paged cache. Decode: keys of a sequence are split over blocks (few sequences fill the GPU), each
// block serves all query heads of one kv head, a second kernel merges the splits in order. Prefill: flash attention by
// mma.sync, 64 query rows of one head per block. Key ranges follow from the rows' positions in GPU memory.
#pragma once
#include "inference/bones/kernels/cuda/pointwise.h"

namespace tie::bones::cuda {

inline constexpr float kNegative = -1e30f;  // below every score; finite, so that differences stay numbers

// ---- decode ----

inline constexpr uint32_t kDecodeThreads = 128, kDecodeTile = 32;  // keys in shared memory at a time
inline constexpr uint32_t kMaxGroup = 16, kMaxDecodeDim = 256;
inline constexpr uint32_t kWarpHeads = kMaxGroup / (kDecodeThreads / 32);  // heads whose scores one warp weighs
inline constexpr uint32_t kDecodeOwned = kMaxGroup * kMaxDecodeDim / kDecodeThreads;  // outputs of a thread

struct DecodeArgs {
  const float* q = nullptr;  // [rows][n_heads * head_dim], scaled
  float* partial = nullptr;  // [rows][n_heads][splits][head_dim]
  float* state = nullptr;    // [rows][n_heads][splits][2]: maximum, sum
  RowPlaces rows;
  PagedKv kv;
  uint32_t n_heads = 0, splits = 1, window = 0;
  float soft_cap = 0;
};

TIE_DEVICE uint32_t decode_shared_bytes(uint32_t group, uint32_t head_dim) {
  return (2 * kDecodeTile * (head_dim + 1) + group * head_dim + group * kDecodeTile + group) * 4;
}

// Grid: x = splits, y = kv heads, z = rows.
template <typename Block>
TIE_DEVICE void decode_attention(Block& b, const DecodeArgs& a) {
  const uint32_t d = a.kv.head_dim, group = a.n_heads / a.kv.n_kv_heads, stride = d + 1;
  const uint32_t row = b.block_z(), kv_head = b.block_y(), split = b.block_x();
  auto keys = b.template shared<float>(0, kDecodeTile * stride);
  auto values = b.template shared<float>(kDecodeTile * stride * 4, kDecodeTile * stride);
  auto q = b.template shared<float>(2 * kDecodeTile * stride * 4, group * d);
  auto weights = b.template shared<float>((2 * kDecodeTile * stride + group * d) * 4, group * kDecodeTile);
  auto shrink = b.template shared<float>((2 * kDecodeTile * stride + group * (d + kDecodeTile)) * 4, group);
  const uint32_t end = a.rows.position[row] + 1, begin = a.window != 0 && end > a.window ? end - a.window : 0;
  const uint32_t tiles = (end - begin + kDecodeTile - 1) / kDecodeTile;
  const uint32_t first = begin + tiles * split / a.splits * kDecodeTile,
                 past = begin + tiles * (split + 1) / a.splits * kDecodeTile;
  const uint32_t last = past < end ? past : end;
  const uint32_t* table = a.rows.tables + uint64_t{a.rows.sequence[row]} * a.rows.table_stride;
  const float* own_q = a.q + (uint64_t{row} * a.n_heads + kv_head * group) * d;
  for (uint32_t i = b.thread(); i < group * d; i += kDecodeThreads) q[i] = own_q[i];
  float acc[kDecodeOwned] = {}, most[kWarpHeads], sum[kWarpHeads];  // of the heads that this warp weighs
  for (uint32_t j = 0; j < kWarpHeads; ++j) most[j] = kNegative, sum[j] = 0.0f;
  const uint32_t warp = b.thread() / kWarp, lane = b.thread() % kWarp;
  for (uint32_t from = first; from < last; from += kDecodeTile) {
    b.sync();
    for (uint32_t i = b.thread(); i < kDecodeTile * d; i += kDecodeThreads) {
      const uint32_t key = from + i / d, dim = i % d;
      const bool there = key < last;
      const uint32_t block = there ? table[key / a.kv.block_tokens] : 0, slot = key % a.kv.block_tokens;
      keys[i / d * stride + dim] = there ? kv_number(a.kv, kv_vector(a.kv, block, kv_head, slot, 0), dim) : 0.0f;
      values[i / d * stride + dim] = there ? kv_number(a.kv, kv_vector(a.kv, block, kv_head, slot, 1), dim) : 0.0f;
    }
    b.sync();
    TIE_UNROLL
    for (uint32_t j = 0; j < kWarpHeads; ++j) {
      const uint32_t g = warp + j * (kDecodeThreads / kWarp);
      if (g >= group) continue;
      float score = 0;
      for (uint32_t i = 0; i < d; ++i) score += q[g * d + i] * keys[lane * stride + i];
      if (a.soft_cap > 0) score = a.soft_cap * tanhf(score / a.soft_cap);
      if (from + lane >= last) score = kNegative;
      const float now = fmaxf(most[j], warp_max(b, score));
      const float weight = from + lane < last ? expf(score - now) : 0.0f, fewer = expf(most[j] - now);
      sum[j] = sum[j] * fewer + warp_sum(b, weight);
      most[j] = now;
      weights[g * kDecodeTile + lane] = weight;
      if (lane == 0) shrink[g] = fewer;
    }
    b.sync();
    TIE_UNROLL
    for (uint32_t o = 0; o < kDecodeOwned; ++o) {
      const uint32_t i = b.thread() + o * kDecodeThreads;
      if (i >= group * d) continue;
      float total = acc[o] * shrink[i / d];
      for (uint32_t j = 0; j < kDecodeTile; ++j) total += weights[i / d * kDecodeTile + j] * values[j * stride + i % d];
      acc[o] = total;
    }
  }
  const uint64_t first_head = uint64_t{row} * a.n_heads + kv_head * group;
  TIE_UNROLL
  for (uint32_t o = 0; o < kDecodeOwned; ++o) {
    const uint32_t i = b.thread() + o * kDecodeThreads;
    if (i >= group * d) continue;
    a.partial[((first_head + i / d) * a.splits + split) * d + i % d] = acc[o];
  }
  TIE_UNROLL
  for (uint32_t j = 0; j < kWarpHeads; ++j) {
    const uint32_t g = warp + j * (kDecodeThreads / kWarp);
    if (g >= group || lane != 0) continue;
    float* state = a.state + ((first_head + g) * a.splits + split) * 2;
    state[0] = most[j];
    state[1] = sum[j];
  }
}

struct MergeArgs {
  const float* partial = nullptr;
  const float* state = nullptr;
  float* out = nullptr;  // [rows][n_heads * head_dim]
  uint32_t n_heads = 0, head_dim = 0, splits = 1;
};

// Grid: x = heads, y = rows.
template <typename Block>
TIE_DEVICE void merge_attention(Block& b, const MergeArgs& a) {
  const uint64_t head = uint64_t{b.block_y()} * a.n_heads + b.block_x();
  const float* state = a.state + head * a.splits * 2;
  float most = kNegative;
  for (uint32_t s = 0; s < a.splits; ++s) most = fmaxf(most, state[2 * s]);
  float sum = 0;
  for (uint32_t s = 0; s < a.splits; ++s) sum += state[2 * s + 1] * expf(state[2 * s] - most);
  for (uint32_t i = b.thread(); i < a.head_dim; i += kRowThreads) {
    float total = 0;
    for (uint32_t s = 0; s < a.splits; ++s)
      total += a.partial[(head * a.splits + s) * a.head_dim + i] * expf(state[2 * s] - most);
    a.out[head * a.head_dim + i] = total / sum;
  }
}

// ---- prefill ----

inline constexpr uint32_t kPrefillThreads = 128, kPrefillRows = 64, kPrefillKeys = 32;

// Consecutive rows of one sequence.
struct PrefillSpan {
  uint32_t first_row, n_rows, first_position, sequence;
};

struct PrefillArgs {
  const float* q = nullptr;
  float* out = nullptr;
  const PrefillSpan* spans = nullptr;  // in GPU memory
  const uint32_t* tables = nullptr;
  uint32_t table_stride = 0;
  PagedKv kv;
  uint32_t n_heads = 0, window = 0;
  float soft_cap = 0;
};

// Rows of bf16 pairs in shared memory, four words of padding against bank conflicts.
template <uint32_t kDim>
inline constexpr uint32_t kPrefillStride = kDim / 2 + 4;
inline constexpr uint32_t kPrefillKeyStride = kPrefillKeys / 2 + 4;
template <uint32_t kDim>
inline constexpr uint32_t kPrefillSharedBytes =
    ((kPrefillRows + kPrefillKeys) * kPrefillStride<kDim> + kDim * kPrefillKeyStride) * 4;

template <uint32_t kDim, typename Block, typename Shared>
TIE_DEVICE void stage_keys(Block& b, const PrefillArgs& a, const uint32_t* table, uint32_t kv_head, uint32_t from,
                           uint32_t end, const Shared& keys, const Shared& values) {
  for (uint32_t i = b.thread(); i < kPrefillKeys * (kDim / 2); i += kPrefillThreads) {
    const uint32_t key = from + i / (kDim / 2), word = i % (kDim / 2);
    uint32_t bits = 0;
    if (key < end) {
      const KvVector k = kv_vector(a.kv, table[key / a.kv.block_tokens], kv_head, key % a.kv.block_tokens, 0);
      bits = bf16_bits(kv_number(a.kv, k, 2 * word)) | bf16_bits(kv_number(a.kv, k, 2 * word + 1)) << 16;
    }
    keys[i / (kDim / 2) * kPrefillStride<kDim> + word] = bits;
  }
  // Values transposed: pairs of keys for each dimension.
  for (uint32_t i = b.thread(); i < kDim * (kPrefillKeys / 2); i += kPrefillThreads) {
    const uint32_t dim = i % kDim, pair = i / kDim;
    uint32_t bits = 0;
    for (uint32_t j = 0; j < 2; ++j) {
      const uint32_t key = from + 2 * pair + j;
      if (key >= end) continue;
      const KvVector v = kv_vector(a.kv, table[key / a.kv.block_tokens], kv_head, key % a.kv.block_tokens, 1);
      bits |= bf16_bits(kv_number(a.kv, v, dim)) << (16 * j);
    }
    values[dim * kPrefillKeyStride + pair] = bits;
  }
}

// Grid: x = tiles of 64 rows, y = heads, z = spans.
template <uint32_t kDim, typename Block>
TIE_DEVICE void prefill_attention(Block& b, const PrefillArgs& a) {
  const PrefillSpan span = a.spans[b.block_z()];
  const uint32_t row0 = b.block_x() * kPrefillRows, head = b.block_y();
  if (row0 >= span.n_rows) return;
  constexpr uint32_t kStride = kPrefillStride<kDim>;
  auto q = b.template shared<uint32_t>(0, kPrefillRows * kStride);
  auto keys = b.template shared<uint32_t>(kPrefillRows * kStride * 4, kPrefillKeys * kStride);
  auto values = b.template shared<uint32_t>((kPrefillRows + kPrefillKeys) * kStride * 4, kDim * kPrefillKeyStride);
  const uint32_t kv_head = head / (a.n_heads / a.kv.n_kv_heads);
  const uint32_t* table = a.tables + uint64_t{span.sequence} * a.table_stride;
  for (uint32_t i = b.thread(); i < kPrefillRows * (kDim / 2); i += kPrefillThreads) {
    const uint32_t row = row0 + i / (kDim / 2), word = i % (kDim / 2);
    uint32_t bits = 0;
    if (row < span.n_rows) {
      const float* from = a.q + (uint64_t{span.first_row + row} * a.n_heads + head) * kDim + 2 * word;
      bits = bf16_bits(from[0]) | bf16_bits(from[1]) << 16;
    }
    q[i / (kDim / 2) * kStride + word] = bits;
  }
  const uint32_t warp = b.thread() / kWarp, lane = b.thread() % kWarp, group = lane / 4, pair = lane % 4;
  const uint32_t last_row = row0 + kPrefillRows < span.n_rows ? row0 + kPrefillRows : span.n_rows;
  const uint32_t end = span.first_position + last_row, first_end = span.first_position + row0 + 1;
  const uint32_t begin = a.window != 0 && first_end > a.window ? first_end - a.window : 0;
  float out[kDim / 8][4] = {}, most[2] = {kNegative, kNegative}, sum[2] = {0.0f, 0.0f};
  for (uint32_t from = begin / kPrefillKeys * kPrefillKeys; from < end; from += kPrefillKeys) {
    b.sync();
    stage_keys<kDim>(b, a, table, kv_head, from, end, keys, values);
    b.sync();
    float score[4][4] = {};
    TIE_UNROLL
    for (uint32_t step = 0; step < kDim / 16; ++step) {
      uint32_t fa[4];
      TIE_UNROLL
      for (uint32_t i = 0; i < 4; ++i)
        fa[i] = q[(warp * 16 + group + 8 * (i % 2)) * kStride + 8 * step + pair + 4 * (i / 2)];
      TIE_UNROLL
      for (uint32_t n = 0; n < 4; ++n) {
        const uint32_t fb[2] = {keys[(8 * n + group) * kStride + 8 * step + pair],
                                keys[(8 * n + group) * kStride + 8 * step + pair + 4]};
        b.mma(score[n], fa, fb);
      }
    }
    TIE_UNROLL
    for (uint32_t half = 0; half < 2; ++half) {  // this lane's rows: group and group + 8 of its warp's sixteen
      const uint32_t position = span.first_position + row0 + warp * 16 + group + 8 * half;
      float best = kNegative;
      TIE_UNROLL
      for (uint32_t n = 0; n < 4; ++n)
        for (uint32_t i = 0; i < 2; ++i) {
          float& s = score[n][2 * half + i];
          const uint32_t key = from + 8 * n + 2 * pair + i;
          if (a.soft_cap > 0) s = a.soft_cap * tanhf(s / a.soft_cap);
          if (key > position || (a.window != 0 && key + a.window <= position)) s = kNegative;
          best = fmaxf(best, s);
        }
      best = fmaxf(best, b.shuffle_xor(best, 1));
      best = fmaxf(best, b.shuffle_xor(best, 2));
      const float now = fmaxf(most[half], best), shrink = expf(most[half] - now);
      most[half] = now;
      float weights = 0;
      TIE_UNROLL
      for (uint32_t n = 0; n < 4; ++n)
        for (uint32_t i = 0; i < 2; ++i) {
          float& s = score[n][2 * half + i];
          s = s <= kNegative ? 0.0f : expf(s - now);
          weights += s;
        }
      weights += b.shuffle_xor(weights, 1);
      weights += b.shuffle_xor(weights, 2);
      sum[half] = sum[half] * shrink + weights;
      TIE_UNROLL
      for (uint32_t n = 0; n < kDim / 8; ++n)
        for (uint32_t i = 0; i < 2; ++i) out[n][2 * half + i] *= shrink;
    }
    TIE_UNROLL
    for (uint32_t step = 0; step < kPrefillKeys / 16; ++step) {
      uint32_t fa[4];
      TIE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        const float* s = score[2 * step + i / 2] + 2 * (i % 2);
        fa[i] = bf16_bits(s[0]) | bf16_bits(s[1]) << 16;
      }
      TIE_UNROLL
      for (uint32_t n = 0; n < kDim / 8; ++n) {
        const uint32_t fb[2] = {values[(8 * n + group) * kPrefillKeyStride + 8 * step + pair],
                                values[(8 * n + group) * kPrefillKeyStride + 8 * step + pair + 4]};
        b.mma(out[n], fa, fb);
      }
    }
  }
  TIE_UNROLL
  for (uint32_t n = 0; n < kDim / 8; ++n)
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t row = row0 + warp * 16 + group + 8 * (i / 2);
      if (row >= span.n_rows) continue;
      a.out[(uint64_t{span.first_row + row} * a.n_heads + head) * kDim + 8 * n + 2 * pair + i % 2] =
          out[n][i] / sum[i / 2];
    }
}

}  // namespace tie::bones::cuda
