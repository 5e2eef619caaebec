// Products of many rows by AVX-512 VNNI: a strip of 16 columns is unpacked once into the caches and meets tiles of up
// to 13 rows, which come from the second-level cache. One column strip at a time, because a broadcast operand then
// costs no instruction of its own: 13 by 1 is faster than 7 by 2. Arithmetic as in avx512_folded.cc (Q4) and
// avx512_matmul.cc.
#include <immintrin.h>

#include "inference/bones/kernels/avx512/avx512.h"
#include "inference/bones/kernels/packing_ids.h"

namespace tie::bones::avx512 {
namespace {

#include "inference/bones/kernels/avx512/dot.inc.h"
#include "inference/bones/kernels/avx512/folded.inc.h"
#include "inference/bones/kernels/avx512/packings.inc.h"

constexpr uint32_t kLeastTileRows = 12;  // see rows_per_tile

template <typename P, int G>
inline void unpack_group(const P& block, std::byte* codes) {
  _mm512_store_si512(codes + 64 * G, block.template codes<G>());
}

// Integer sums of groups [From, To) of one block: w as [group][64], R rows of activations.
template <int R, int From, int To>
inline void strip_groups(const std::byte* w, const int8_t* codes, __m512i (&d)[R]) {
#pragma GCC unroll 8
  for (int g = From; g < To; ++g) {
    const __m512i v = load(w + 64 * g);
#pragma GCC unroll 13
    for (int r = 0; r < R; ++r) dot_broadcast(d[r], v, codes + (g * R + r) * 4);
  }
}

// A strip of Q4 in scratch: codes [block][8 groups][64], then words [block][64].
struct FoldedStrip {
  std::byte *codes, *words;
  __m512 unit;
  FoldedStrip(const std::byte* strip, uint32_t blocks, std::byte* scratch)
      : codes(scratch), words(scratch + size_t{blocks} * 512) {
    for (uint32_t b = 0; b < blocks; ++b, strip += kQ4TileBytes) {
      for (uint32_t j = 0; j < 4; ++j) {
        const __m512i v = load(strip + 64 * j);
        _mm512_store_si512(codes + 512 * size_t{b} + 64 * j, low_nibbles(v));
        _mm512_store_si512(codes + 512 * size_t{b} + 64 * (j + 4), high_nibbles(v));
      }
      _mm512_store_si512(words + 64 * size_t{b}, load(strip + 256));
    }
    unit = _mm512_loadu_ps(reinterpret_cast<const float*>(strip));
  }

  template <int R>
  void times(const Activations& x, uint32_t tile, uint32_t rows, float* out, size_t stride, bool add) const {
    const uint32_t blocks = x.blocks();
    const size_t first = size_t{tile} * blocks;
    const int8_t* in = x.codes + first * 32 * R;
    const int32_t* start = x.start4 + first * R;
    const float* scale = x.scale + first * R;
    const std::byte *w = codes, *word_at = words;
    Totals<R> totals;
    for (uint32_t b = 0; b < blocks; b += kScaleBlocks, scale += kScaleBlocks * R) {
      __m512i sum[R];
#pragma GCC unroll 13
      for (int r = 0; r < R; ++r) sum[r] = _mm512_setzero_si512();
      for (uint32_t r = b; r < b + kScaleBlocks && r < rows; ++r) __builtin_prefetch(out + r * stride, 1, 3);
      for (uint32_t n = blocks_of_group(b, blocks); n > 0; --n, w += 512, word_at += 64, in += 32 * R, start += R) {
        __m512i d[R];
#pragma GCC unroll 13
        for (int r = 0; r < R; ++r) d[r] = _mm512_set1_epi32(start[r]);
        strip_groups<R, 0, 8>(w, in, d);
        const __m512i word = load(word_at);
#pragma GCC unroll 13
        for (int r = 0; r < R; ++r) scale_dot(sum[r], d[r], word);
      }
#pragma GCC unroll 13
      for (int r = 0; r < R; ++r) totals.add(r, sum[r], scale[r]);
      totals.keep_in_memory();
    }
    for (uint32_t r = 0; r < rows; ++r)
      finish(out + r * stride, _mm512_mul_ps(_mm512_load_ps(totals.value[r]), unit), add);
  }
};

// A strip of Q5, Q6 or Q8 in scratch: codes as above, then scales [block][half][16], then minima [block][16].
template <typename P>
struct ScaledStrip {
  static constexpr int kScales = P::kHalves ? 2 : 1;
  std::byte* codes;
  float *scale, *minimum;
  ScaledStrip(const std::byte* strip, uint32_t blocks, std::byte* scratch)
      : codes(scratch),
        scale(reinterpret_cast<float*>(scratch + size_t{blocks} * 512)),
        minimum(scale + size_t{blocks} * kScales * 16) {
    for (uint32_t b = 0; b < blocks; ++b) {
      const P block(strip, b);
      std::byte* to = codes + size_t{b} * 512;
      unpack_group<P, 0>(block, to);
      unpack_group<P, 1>(block, to);
      unpack_group<P, 2>(block, to);
      unpack_group<P, 3>(block, to);
      unpack_group<P, 4>(block, to);
      unpack_group<P, 5>(block, to);
      unpack_group<P, 6>(block, to);
      unpack_group<P, 7>(block, to);
      for (int h = 0; h < kScales; ++h) _mm512_store_ps(scale + (size_t{b} * kScales + h) * 16, block.scale(h));
      if constexpr (P::kMinimum) _mm512_store_ps(minimum + size_t{b} * 16, block.minimum());
    }
  }

  template <int R>
  void times(const Activations& x, uint32_t tile, uint32_t rows, float* out, size_t stride, bool add) const {
    const uint32_t blocks = x.blocks();
    __m512 acc[R];
#pragma GCC unroll 13
    for (int r = 0; r < R; ++r) acc[r] = _mm512_setzero_ps();
    for (uint32_t b = 0; b < blocks; ++b) {
      const size_t at = (size_t{tile} * blocks + b) * R;
      const std::byte* w = codes + size_t{b} * 512;
      const int8_t* in = x.codes + at * 32;
      const float* s = scale + size_t{b} * kScales * 16;
      __m512i d[R];
#pragma GCC unroll 13
      for (int r = 0; r < R; ++r) d[r] = start_sum<P>(x.neg128 + at, x.neg32 + 2 * at, r);
      strip_groups<R, 0, P::kHalves ? 4 : 8>(w, in, d);
      add_scaled<R>(d, s, x.scale + at, acc);
      if constexpr (P::kHalves) {
#pragma GCC unroll 13
        for (int r = 0; r < R; ++r) d[r] = start_sum<P>(x.neg128 + at, x.neg32 + 2 * at + R, r);
        strip_groups<R, 4, 8>(w, in, d);
        add_scaled<R>(d, s + 16, x.scale + at, acc);
      }
      if constexpr (P::kMinimum) {
        const __m512 m = _mm512_load_ps(minimum + size_t{b} * 16);
#pragma GCC unroll 13
        for (int r = 0; r < R; ++r) acc[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(x.sum[at + r]), acc[r]);
      }
    }
#pragma GCC unroll 13
    for (uint32_t r = 0; r < R; ++r)
      if (r < rows) finish(out + r * stride, acc[r], add);
  }

  template <int R>
  static void add_scaled(const __m512i (&d)[R], const float* w_scale, const float* x_scale, __m512 (&acc)[R]) {
    const __m512 s = _mm512_load_ps(w_scale);
#pragma GCC unroll 13
    for (int r = 0; r < R; ++r)
      acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d[r]), _mm512_mul_ps(s, _mm512_set1_ps(x_scale[r])), acc[r]);
  }
};

template <typename Strip, int R>
void by_strips(const MatmulJob& job, size_t bytes) {
  const Activations& x = *job.x;
  const uint32_t tiles = x.tiles();
  for (uint32_t s = 0; s < job.n_strips; ++s) {
    const std::byte* from = job.w.data + (size_t{job.first_strip} + s) * bytes;
    const Strip strip(from, x.blocks(), job.scratch);
    for (uint32_t tile = 0; tile < tiles; ++tile) {
      prefetch_share(from + bytes, bytes, tile, tiles);
      const uint32_t left = x.rows - tile * R, rows = left < R ? left : R;
      float* out = job.out + size_t{tile} * R * job.out_stride + s * kStrip;
      strip.template times<R>(x, tile, rows, out, job.out_stride, job.add);
    }
  }
}

template <typename Strip>
void by_rows(const MatmulJob& job, size_t bytes) {
  using Fn = void (*)(const MatmulJob&, size_t);
  static constexpr Fn kRows[kPanelTileRows - kLeastTileRows + 1] = {by_strips<Strip, 12>, by_strips<Strip, 13>};
  kRows[job.x->rows_per_tile - kLeastTileRows](job, bytes);
}

}  // namespace

void panel_matmul(const MatmulJob& job) {
  static_assert(kFusedRows + 1 > (kPanelTileRows - 2) * (kFusedRows / kPanelTileRows + 1));  // rows_per_tile
  const uint32_t blocks = job.x->blocks();
  switch (static_cast<uint32_t>(job.w.packing)) {
    case kPackingQ4:
      return by_rows<FoldedStrip>(job, folded_strip_bytes(blocks));
    case kPackingQ5:
      return by_rows<ScaledStrip<Q5>>(job, strip_stride<Q5>(blocks));
    case kPackingQ6:
      return by_rows<ScaledStrip<Q6>>(job, strip_stride<Q6>(blocks));
    default:
      return by_rows<ScaledStrip<Q8>>(job, strip_stride<Q8>(blocks));
  }
}

}  // namespace tie::bones::avx512
