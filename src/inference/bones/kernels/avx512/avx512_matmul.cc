// Products with Q5, Q6 and Q8 tiles by AVX-512 VNNI (Q4: avx512_folded.cc). Two shapes: a few tiles of up to 12 rows
// straight from the packed tiles (one sequential stream of weights), and many rows from a panel of 32 columns unpacked
// once into the caches. Longer than a usual file because each packing has its own unrolled tile. dpbusd is written as
// assembly because the compiler copies its accumulators otherwise.
#include <immintrin.h>

#include "inference/bones/kernels/avx512/avx512.h"
#include "inference/bones/kernels/packing_ids.h"

namespace tie::bones::avx512 {
namespace {

#include "inference/bones/kernels/avx512/dot.inc.h"
#include "inference/bones/kernels/avx512/packings.inc.h"

// Where the integer sums start so that codes count from zero.
template <typename P>
inline __m512i start_sum(const int32_t* neg128, const int32_t* neg32, uint32_t r) {
  if constexpr (__is_same(P, Q8)) return _mm512_set1_epi32(neg128[r]);
  if constexpr (__is_same(P, Q6)) return _mm512_set1_epi32(neg32[r]);
  return _mm512_setzero_si512();
}

template <typename P, int R, int G>
inline void fused_group(const P& block, const int8_t* codes, __m512i (&d)[R]) {
  const __m512i w = block.template codes<G>();
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) dot_broadcast(d[r], w, codes + (G * R + r) * 4);
}

template <typename P, int R>
inline void fused_tail(const P& block, int half, const float* scale, const __m512i (&d)[R], __m512 (&acc)[R]) {
  const __m512 s = block.scale(half);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r)
    acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d[r]), _mm512_mul_ps(s, _mm512_set1_ps(scale[r])), acc[r]);
}

// One strip of 16 columns by R rows: tile `tile` of the activations. Prefetches 3 KB ahead in its own stream, or with
// `spread` (several tiles read the same strip) its share of the next strip.
template <typename P, int R>
void fused_strip(const std::byte* strip, const Activations& x, uint32_t tile, uint32_t blocks, size_t spread,
                 float* out, size_t stride, bool add) {
  __m512 acc[R];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) acc[r] = _mm512_setzero_ps();
  const size_t first = size_t{tile} * blocks;
  const int8_t* codes = x.codes + first * 32 * R;
  const float *scale = x.scale + first * R, *sum = x.sum + first * R;
  const int32_t *neg128 = x.neg128 + first * R, *neg32 = x.neg32 + first * 2 * R;
  const size_t ahead = spread != 0 ? spread : 3072;
  const uint32_t tiles = spread != 0 ? x.tiles() : 1;
  uint32_t turn = tile % tiles;
  for (uint32_t b = 0; b < blocks; ++b, codes += 32 * R, scale += R, sum += R, neg128 += R, neg32 += 2 * R) {
    const P block(strip, b);
    if (turn == 0) {
      for (int line = 0; line < P::kLines; ++line)
        _mm_prefetch(reinterpret_cast<const char*>(block.tile) + ahead + 64 * line, _MM_HINT_T0);
      turn = tiles;
    }
    --turn;
    __m512i d[R];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) d[r] = start_sum<P>(neg128, neg32, r);
    fused_group<P, R, 0>(block, codes, d);
    fused_group<P, R, 1>(block, codes, d);
    fused_group<P, R, 2>(block, codes, d);
    fused_group<P, R, 3>(block, codes, d);
    if constexpr (P::kHalves) {
      fused_tail(block, 0, scale, d, acc);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) d[r] = start_sum<P>(neg128, neg32 + R, r);
    }
    fused_group<P, R, 4>(block, codes, d);
    fused_group<P, R, 5>(block, codes, d);
    fused_group<P, R, 6>(block, codes, d);
    fused_group<P, R, 7>(block, codes, d);
    fused_tail(block, 1, scale, d, acc);
    if constexpr (P::kMinimum) {
      const __m512 m = block.minimum();
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) acc[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(sum[r]), acc[r]);
    }
  }
  const uint32_t rows = x.rows - tile * R < R ? x.rows - tile * R : R;
  out += size_t{tile} * R * stride;
#pragma GCC unroll 12
  for (uint32_t r = 0; r < R; ++r)
    if (r < rows) finish(out + r * stride, acc[r], add);
}

template <typename P, int R>
void fused(const MatmulJob& job) {
  const uint32_t blocks = job.x->blocks(), tiles = job.x->tiles();
  const size_t bytes = strip_stride<P>(blocks), spread = tiles > 1 ? bytes : 0;
  const std::byte* strip = job.w.data + job.first_strip * bytes;
  for (uint32_t s = 0; s < job.n_strips; ++s, strip += bytes)
    for (uint32_t tile = 0; tile < tiles; ++tile)
      fused_strip<P, R>(strip, *job.x, tile, blocks, spread, job.out + s * kStrip, job.out_stride, job.add);
}

// ---- many rows: a panel of S strips, unpacked ----

// The panel in scratch: codes [block][group][S][64 bytes], then scales [block][half][S][16], then minima
// [block][S][16].
template <typename P, int S>
struct Panel {
  static constexpr uint32_t kScales = P::kHalves ? 2 : 1;
  std::byte* codes;
  float* scale;
  float* minimum;
  Panel(std::byte* scratch, uint32_t blocks)
      : codes(scratch),
        scale(reinterpret_cast<float*>(scratch + size_t{blocks} * 512 * S)),
        minimum(scale + size_t{blocks} * kScales * S * 16) {}
};

template <typename P, int S, int G>
inline void unpack_group(const P& block, std::byte* codes, uint32_t s) {
  _mm512_store_si512(codes + (G * S + s) * 64, block.template codes<G>());
}

template <typename P, int S>
void unpack(const Panel<P, S>& panel, const std::byte* strip, uint32_t s, uint32_t blocks) {
  for (uint32_t b = 0; b < blocks; ++b) {
    const P block(strip, b);
    std::byte* codes = panel.codes + size_t{b} * 512 * S;
    unpack_group<P, S, 0>(block, codes, s);
    unpack_group<P, S, 1>(block, codes, s);
    unpack_group<P, S, 2>(block, codes, s);
    unpack_group<P, S, 3>(block, codes, s);
    unpack_group<P, S, 4>(block, codes, s);
    unpack_group<P, S, 5>(block, codes, s);
    unpack_group<P, S, 6>(block, codes, s);
    unpack_group<P, S, 7>(block, codes, s);
    for (uint32_t h = 0; h < panel.kScales; ++h)
      _mm512_store_ps(panel.scale + ((size_t{b} * panel.kScales + h) * S + s) * 16, block.scale(h));
    if constexpr (P::kMinimum) _mm512_store_ps(panel.minimum + (size_t{b} * S + s) * 16, block.minimum());
  }
}

template <int S>
inline void panel_tail(const float* w_scale, const float* x_scale, const __m512i (&d)[kPanelRows][S],
                       __m512 (&acc)[kPanelRows][S]) {
#pragma GCC unroll 7
  for (uint32_t r = 0; r < kPanelRows; ++r) {
    const __m512 x = _mm512_set1_ps(x_scale[r]);
#pragma GCC unroll 2
    for (int s = 0; s < S; ++s)
      acc[r][s] =
          _mm512_fmadd_ps(_mm512_cvtepi32_ps(d[r][s]), _mm512_mul_ps(_mm512_load_ps(w_scale + 16 * s), x), acc[r][s]);
  }
}

// One tile of 7 rows by S strips.
template <typename P, int S>
void panel_tile(const Panel<P, S>& panel, const Activations& x, uint32_t tile, uint32_t blocks, float* out,
                size_t stride, bool add) {
  __m512 acc[kPanelRows][S];
#pragma GCC unroll 7
  for (uint32_t r = 0; r < kPanelRows; ++r)
#pragma GCC unroll 2
    for (int s = 0; s < S; ++s) acc[r][s] = _mm512_setzero_ps();
  const size_t first = size_t{tile} * blocks;
  const int8_t* codes = x.codes + first * 32 * kPanelRows;
  for (uint32_t b = 0; b < blocks; ++b, codes += 32 * kPanelRows) {
    const std::byte* w = panel.codes + size_t{b} * 512 * S;
    const size_t at = (first + b) * kPanelRows;
    __m512i d[kPanelRows][S];
#pragma GCC unroll 7
    for (uint32_t r = 0; r < kPanelRows; ++r)
#pragma GCC unroll 2
      for (int s = 0; s < S; ++s) d[r][s] = start_sum<P>(x.neg128 + at, x.neg32 + 2 * at, r);
    if constexpr (P::kHalves) {
      panel_groups<S>(w, codes, 0, 4, d);
      panel_tail<S>(panel.scale + size_t{b} * 2 * S * 16, x.scale + at, d, acc);
#pragma GCC unroll 7
      for (uint32_t r = 0; r < kPanelRows; ++r)
#pragma GCC unroll 2
        for (int s = 0; s < S; ++s) d[r][s] = start_sum<P>(x.neg128, x.neg32 + 2 * at + kPanelRows, r);
      panel_groups<S>(w, codes, 4, 8, d);
      panel_tail<S>(panel.scale + (size_t{b} * 2 + 1) * S * 16, x.scale + at, d, acc);
    } else {
      panel_groups<S>(w, codes, 0, 8, d);
      panel_tail<S>(panel.scale + size_t{b} * S * 16, x.scale + at, d, acc);
    }
    if constexpr (P::kMinimum) {
#pragma GCC unroll 7
      for (uint32_t r = 0; r < kPanelRows; ++r) {
        const __m512 sum = _mm512_set1_ps(x.sum[at + r]);
#pragma GCC unroll 2
        for (int s = 0; s < S; ++s)
          acc[r][s] = _mm512_fmadd_ps(_mm512_load_ps(panel.minimum + (size_t{b} * S + s) * 16), sum, acc[r][s]);
      }
    }
  }
  const uint32_t rows = x.rows - tile * kPanelRows < kPanelRows ? x.rows - tile * kPanelRows : kPanelRows;
#pragma GCC unroll 7
  for (uint32_t r = 0; r < kPanelRows; ++r)
    if (r < rows)
#pragma GCC unroll 2
      for (int s = 0; s < S; ++s) finish(out + (size_t{tile} * kPanelRows + r) * stride + 16 * s, acc[r][s], add);
}

template <typename P, int S>
void panel_strips(const MatmulJob& job, uint32_t strip) {
  const uint32_t blocks = job.x->blocks();
  const Panel<P, S> panel(job.scratch, blocks);
  const size_t bytes = strip_stride<P>(blocks);
  for (uint32_t s = 0; s < S; ++s) unpack<P, S>(panel, job.w.data + (job.first_strip + strip + s) * bytes, s, blocks);
  const std::byte* next = job.w.data + (size_t{job.first_strip} + strip + S) * bytes;
  for (uint32_t tile = 0; tile < job.x->tiles(); ++tile) {
    prefetch_share(next, S * bytes, tile, job.x->tiles());
    panel_tile<P, S>(panel, *job.x, tile, blocks, job.out + strip * kStrip, job.out_stride, job.add);
  }
}

template <typename P>
void by_panels(const MatmulJob& job) {
  uint32_t strip = 0;
  for (; strip + 2 <= job.n_strips; strip += 2) panel_strips<P, 2>(job, strip);
  if (strip < job.n_strips) panel_strips<P, 1>(job, strip);
}

template <typename P>
void quantised(const MatmulJob& job) {
  using Fn = void (*)(const MatmulJob&);
  static constexpr Fn kFused[kMaxTileRows] = {fused<P, 1>, fused<P, 2>,  fused<P, 3>,  fused<P, 4>,
                                              fused<P, 5>, fused<P, 6>,  fused<P, 7>,  fused<P, 8>,
                                              fused<P, 9>, fused<P, 10>, fused<P, 11>, fused<P, 12>};
  if (job.x->rows > kFusedRows) return by_panels<P>(job);
  kFused[job.x->rows_per_tile - 1](job);
}

}  // namespace

void quantised_matmul(const MatmulJob& job) {
  switch (static_cast<uint32_t>(job.w.packing)) {
    case kPackingQ4:
      return folded_matmul(job);
    case kPackingQ5:
      return quantised<Q5>(job);
    case kPackingQ6:
      return quantised<Q6>(job);
    default:
      return quantised<Q8>(job);
  }
}

}  // namespace tie::bones::avx512
