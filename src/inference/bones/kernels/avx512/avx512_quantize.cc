// Rounding to int8 by AVX-512: the maxima of up to 8 scale groups are reduced together, their divisions are one
// instruction, and four rows' codes are transposed in registers so that the tile's order is written 16 bytes at a time.
// A tile of 4 rows or more goes scale group by scale group through all rows, fewer rows go along the row. Bits as in
// simd/vector_kernels.inc.h, which keeps the cases that are left over.
#include <immintrin.h>

#include "inference/bones/kernels/avx512/avx512.h"

namespace tie::bones::avx512 {
namespace {

constexpr uint32_t kQuad = 4;  // cells whose codes are transposed together

// A cell is one scale group of one row, as 2 * B vectors of 16 values: B blocks. kNormed: (x * row scale) * weight.
template <int B, bool Normed>
inline __m512 cell_values(const float* x, const __m512* weight, float row_scale, __m512 (&v)[2 * B]) {
  __m512 top = _mm512_setzero_ps();
#pragma GCC unroll 4
  for (int i = 0; i < 2 * B; ++i) {
    v[i] = _mm512_loadu_ps(x + 16 * i);
    if constexpr (Normed) v[i] = _mm512_mul_ps(_mm512_mul_ps(v[i], _mm512_set1_ps(row_scale)), weight[i]);
    top = _mm512_range_ps(top, v[i], 0x0b);  // the larger magnitude
  }
  return top;
}

// Codes of a cell. In lane l, dword j holds inputs 4l..4l+3 of vector j.
template <int B>
inline __m512i cell_codes(const __m512 (&v)[2 * B], float inverse) {
  __m512i q[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    q[i] = i < 2 * B ? _mm512_cvtps_epi32(_mm512_mul_ps(v[i], _mm512_set1_ps(inverse))) : _mm512_setzero_si512();
  return _mm512_packs_epi16(_mm512_packs_epi32(q[0], q[1]), _mm512_packs_epi32(q[2], q[3]));
}

inline __m512 larger(__m512 a, __m512 b) {
  return _mm512_max_ps(a, b);
}

// Element i: the largest of v[i]. The order does not matter: maxima are exact.
inline __m128 largest_of_4(const __m512* v) {
  const __m512 ab = larger(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
  const __m512 cd = larger(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  const __m512 all = larger(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  return _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// Four vectors whose lanes' sums over l are wanted: lane i of the result is the sum of v[i]'s four lanes.
inline __m512i add_lanes(const __m512i (&v)[4]) {
  const __m512i a = _mm512_add_epi32(_mm512_shuffle_i32x4(v[0], v[1], 0x44), _mm512_shuffle_i32x4(v[0], v[1], 0xee));
  const __m512i b = _mm512_add_epi32(_mm512_shuffle_i32x4(v[2], v[3], 0x44), _mm512_shuffle_i32x4(v[2], v[3], 0xee));
  return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

inline __m512i sums_of_fours(__m512i codes) {
  return _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), codes);
}

struct Scales {
  __m128 scale, inverse;
};
inline Scales scales_of(__m128 amax) {
  const __mmask8 usable = _mm_cmp_ps_mask(amax, _mm_set1_ps(1e-30f), _CMP_GT_OQ);
  return {_mm_maskz_div_ps(usable, amax, _mm_set1_ps(127.0f)), _mm_maskz_div_ps(usable, _mm_set1_ps(127.0f), amax)};
}

inline __m512i times_65535_8(__m512i v) {
  return _mm512_sub_epi32(_mm512_slli_epi32(v, 19), _mm512_slli_epi32(v, 3));
}
inline __m512i times_minus(__m512i v, unsigned shift) {
  return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(v, shift));
}

inline void store_lane(void* to, __m512i v, int lane) {
  __m128i* p = static_cast<__m128i*>(to);
  switch (lane) {  // constant after unrolling
    case 0:
      return _mm_storeu_si128(p, _mm512_castsi512_si128(v));
    case 1:
      return _mm_storeu_si128(p, _mm512_extracti32x4_epi32(v, 1));
    case 2:
      return _mm_storeu_si128(p, _mm512_extracti32x4_epi32(v, 2));
    default:
      return _mm_storeu_si128(p, _mm512_extracti32x4_epi32(v, 3));
  }
}

// Writes rows [row, row + 4) of a tile of R rows: their codes and all that goes with B blocks. `block`: the first
// block's number in the arrays.
template <int B>
inline void write_quad(const Activations& out, size_t block, uint32_t R, uint32_t row, const __m512i* codes,
                       __m128 scale) {
  const __m512i ab_low = _mm512_unpacklo_epi32(codes[0], codes[1]), ab_high = _mm512_unpackhi_epi32(codes[0], codes[1]);
  const __m512i cd_low = _mm512_unpacklo_epi32(codes[2], codes[3]), cd_high = _mm512_unpackhi_epi32(codes[2], codes[3]);
  // Lane l of columns[j]: group 4 * (j % 2) + l of block j / 2, the four rows.
  const __m512i columns[4] = {_mm512_unpacklo_epi64(ab_low, cd_low), _mm512_unpackhi_epi64(ab_low, cd_low),
                              _mm512_unpacklo_epi64(ab_high, cd_high), _mm512_unpackhi_epi64(ab_high, cd_high)};
  __m512i fours[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    fours[j] = j < 2 * B ? sums_of_fours(columns[j]) : _mm512_setzero_si512();
    if (j >= 2 * B) continue;
    int8_t* to = out.codes + (((block + j / 2) * 8 + (j % 2) * 4) * R + row) * 4;
#pragma GCC unroll 4
    for (int l = 0; l < 4; ++l) store_lane(to + size_t{R} * 4 * l, columns[j], l);
  }
  const __m512i halves = add_lanes(fours);  // lane j: half j % 2 of block j / 2
  const __m512i sums = _mm512_add_epi32(halves, _mm512_shuffle_i32x4(halves, halves, 0xb1));  // lanes 0 and 2: blocks
  const __m512i start4 = times_65535_8(sums), neg128 = times_minus(sums, 7), neg32 = times_minus(halves, 5);
  const __m512 sum = _mm512_mul_ps(_mm512_broadcast_f32x4(scale), _mm512_cvtepi32_ps(sums));
#pragma GCC unroll 2
  for (int b = 0; b < B; ++b) {
    const size_t at = (block + b) * R + row;
    _mm_storeu_ps(out.scale + at, scale);
    store_lane(out.sum + at, _mm512_castps_si512(sum), 2 * b);
    store_lane(out.start4 + at, start4, 2 * b);
    store_lane(out.neg128 + at, neg128, 2 * b);
    store_lane(out.neg32 + 2 * at - row, neg32, 2 * b);
    store_lane(out.neg32 + 2 * at - row + R, neg32, 2 * b + 1);
  }
}

// Rows [from, from + N) of the job's tile, N of 4 to 8, through `blocks` blocks.
template <int N, int B, bool Normed>
void by_rows(const QuantizeJob& job, uint32_t from, uint32_t first_block, uint32_t blocks) {
  const Activations& out = *job.out;
  const uint32_t R = out.rows_per_tile, row = job.tile * R + from;
  const float* x[N];
  float row_scale[N];
  for (uint32_t r = 0; r < N; ++r) {  // rows beyond the batch: another row's values, times zero
    const uint32_t real = row + r < out.rows ? row + r : out.rows - 1;
    x[r] = job.x + real * job.x_stride + (first_block - job.x_first_block) * kBlock;
    row_scale[r] = Normed ? job.row_scale[real] : 1.0f;
  }
  const auto real =
      static_cast<__mmask8>(row + N <= out.rows ? 0xff : (1u << (out.rows > row ? out.rows - row : 0)) - 1);
  const float* weights = Normed ? job.weight + size_t{first_block} * kBlock : nullptr;
  size_t block = size_t{job.tile} * out.blocks() + first_block;
  constexpr int kLast = N - static_cast<int>(kQuad);  // the second quad's first row; quads may overlap
  for (uint32_t b = 0, at = 0; b < blocks; b += B, block += B, at += B * kBlock) {
    __m512 weight[2 * B], top[N];
    alignas(64) float values[Normed ? N : 1][2 * B][16];
#pragma GCC unroll 4
    for (int i = 0; i < 2 * B; ++i) weight[i] = Normed ? _mm512_loadu_ps(weights + at + 16 * i) : _mm512_setzero_ps();
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) {
      __m512 v[2 * B];
      top[r] = cell_values<B, Normed>(x[r] + at, weight, row_scale[r], v);
      if constexpr (Normed)
        for (int i = 0; i < 2 * B; ++i) _mm512_store_ps(values[r][i], v[i]);
    }
    Scales scales[2];
    scales[0] = scales_of(_mm_maskz_mov_ps(real, largest_of_4(top)));
    if constexpr (kLast > 0)
      scales[1] = scales_of(_mm_maskz_mov_ps(static_cast<__mmask8>(real >> kLast), largest_of_4(top + kLast)));
    alignas(16) float inverse[kQuad + N];
    _mm_store_ps(inverse, scales[0].inverse);
    if constexpr (kLast > 0) _mm_storeu_ps(inverse + kLast, scales[1].inverse);
    __m512i codes[N];
#pragma GCC unroll 8
    for (int r = 0; r < N; ++r) {
      __m512 v[2 * B];
#pragma GCC unroll 4
      for (int i = 0; i < 2 * B; ++i)
        v[i] = Normed ? _mm512_load_ps(values[r % (Normed ? N : 1)][i]) : _mm512_loadu_ps(x[r] + at + 16 * i);
      codes[r] = cell_codes<B>(v, inverse[r]);
    }
    write_quad<B>(out, block, R, from, codes, scales[0].scale);
    if constexpr (kLast > 0) write_quad<B>(out, block, R, from + kLast, codes + kLast, scales[1].scale);
  }
}

template <int B, bool Normed>
void tile_by_rows(const QuantizeJob& job, uint32_t first_block, uint32_t blocks) {
  using Fn = void (*)(const QuantizeJob&, uint32_t, uint32_t, uint32_t);
  static constexpr Fn kRows[5] = {by_rows<4, B, Normed>, by_rows<5, B, Normed>, by_rows<6, B, Normed>,
                                  by_rows<7, B, Normed>, by_rows<8, B, Normed>};
  for (uint32_t from = 0, left = job.out->rows_per_tile; left > 0;) {
    const uint32_t n = left <= 8 ? left : left < 8 + kQuad ? (left + 1) / 2 : 8;  // leaves none or at least a quad
    kRows[n - kQuad](job, from, first_block, blocks);
    from += n, left -= n;
  }
}

// Up to 4 scale groups of two blocks of row r of a tile of 1 to 3 rows, from block `block` of the arrays on.
template <bool Normed>
inline void along_row(const float* x, const float* weights, float row_scale, const Activations& out, size_t block,
                      uint32_t r, uint32_t groups) {
  __m512 v[kQuad][4], top[kQuad];
#pragma GCC unroll 4
  for (uint32_t c = 0; c < kQuad; ++c) {
    const size_t at = size_t{c < groups ? c : groups - 1} * 2 * kBlock;
    __m512 weight[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) weight[i] = Normed ? _mm512_loadu_ps(weights + at + 16 * i) : _mm512_setzero_ps();
    top[c] = cell_values<2, Normed>(x + at, weight, row_scale, v[c]);
  }
  const Scales scales = scales_of(largest_of_4(top));
  alignas(16) float inverse[kQuad];
  _mm_store_ps(inverse, scales.inverse);
  const uint32_t R = out.rows_per_tile;
  const __m512i straight = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  __m512i fours[kQuad];
#pragma GCC unroll 4
  for (uint32_t c = 0; c < kQuad; ++c) {
    const __m512i codes = cell_codes<2>(v[c], inverse[c]);
    fours[c] = sums_of_fours(codes);
    if (c >= groups) continue;
    int8_t* to = out.codes + ((block + 2 * c) * 8 * R + r) * 4;
    const __m512i in_order = _mm512_permutexvar_epi32(straight, codes);
    if (R == 1)
      _mm512_storeu_si512(to, in_order);
    else
      _mm512_i32scatter_epi32(
          to,
          _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                             _mm512_set1_epi32(static_cast<int>(R))),
          in_order, 4);
  }
  const __m512i halves = add_lanes(fours);  // lane c, dword j: half j % 2 of block j / 2 of group c
  const __m512i sums = _mm512_add_epi32(halves, _mm512_shuffle_epi32(halves, _MM_PERM_CDAB));
  const __m512 scale = _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3),
                                             _mm512_castps128_ps512(scales.scale));
  alignas(64) int32_t start4[16], neg128[16], neg32[16];
  alignas(64) float scale_of[16], sum[16];
  _mm512_store_si512(start4, times_65535_8(sums));
  _mm512_store_si512(neg128, times_minus(sums, 7));
  _mm512_store_si512(neg32, times_minus(halves, 5));
  _mm512_store_ps(scale_of, scale);
  _mm512_store_ps(sum, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(sums)));
  for (uint32_t b = 0; b < 2 * groups; ++b) {
    const size_t at = (block + b) * R + r;
    out.scale[at] = scale_of[2 * b];
    out.sum[at] = sum[2 * b];
    out.start4[at] = start4[2 * b];
    out.neg128[at] = neg128[2 * b];
    out.neg32[2 * at - r] = neg32[2 * b];
    out.neg32[2 * at - r + R] = neg32[2 * b + 1];
  }
}

template <bool Normed>
void tile_along_rows(const QuantizeJob& job, uint32_t blocks) {
  const Activations& out = *job.out;
  const uint32_t R = out.rows_per_tile;
  for (uint32_t r = 0; r < R; ++r) {
    const uint32_t row = job.tile * R + r;
    const float* x = job.x + row * job.x_stride + (job.first_block - job.x_first_block) * kBlock;
    for (uint32_t b = 0; b < blocks; b += 2 * kQuad) {
      const uint32_t groups = (blocks - b) / 2 < kQuad ? (blocks - b) / 2 : kQuad;
      along_row<Normed>(x + b * kBlock, Normed ? job.weight + (job.first_block + b) * kBlock : nullptr,
                        Normed ? job.row_scale[row] : 1.0f, out, size_t{job.tile} * out.blocks() + job.first_block + b,
                        r, groups);
    }
  }
}

}  // namespace

uint32_t quantize(const QuantizeJob& job) {
  static_assert(kScaleBlocks == 2, "cells are one or two blocks");
  const Activations& out = *job.out;
  const bool normed = job.weight != nullptr;
  if (out.want_f32 || !out.want_codes || normed != (job.row_scale != nullptr)) return 0;
  const uint32_t R = out.rows_per_tile, pairs = out.group == 2 ? job.n_blocks / 2 * 2 : 0;
  if (R >= kQuad) {
    if (pairs > 0) (normed ? tile_by_rows<2, true> : tile_by_rows<2, false>)(job, job.first_block, pairs);
    if (pairs < job.n_blocks)
      (normed ? tile_by_rows<1, true> : tile_by_rows<1, false>)(job, job.first_block + pairs, job.n_blocks - pairs);
    return job.n_blocks;
  }
  if ((job.tile + 1) * R > out.rows) return 0;
  (normed ? tile_along_rows<true> : tile_along_rows<false>)(job, pairs);
  return pairs;
}

}  // namespace tie::bones::avx512
