// Products of a few tiles of up to 12 rows with Q5, Q6 and Q8 tiles by AVX-512 VNNI, straight from the packed tiles:
// one sequential stream of weights. (Q4: avx512_folded.cc; many rows: avx512_panels.cc.)
#include <immintrin.h>

#include "inference/bones/kernels/avx512/avx512.h"
#include "inference/bones/kernels/packing_ids.h"

namespace tie::bones::avx512 {
namespace {

#include "inference/bones/kernels/avx512/dot.inc.h"
#include "inference/bones/kernels/avx512/packings.inc.h"

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
  const uint32_t tiles = spread != 0 ? x.tiles() : 1, rows = x.rows - tile * R < R ? x.rows - tile * R : R;
  out += size_t{tile} * R * stride;
  fetch_to_write(out, stride, rows);
  uint32_t turn = tile % tiles;
  for (uint32_t b = 0; b < blocks; ++b, codes += 32 * R, scale += R, sum += R, neg128 += R, neg32 += 2 * R) {
    const P block(strip, b);
    if (turn == 0) {
      for (int line = 0; line < P::kLines; ++line)
        _mm_prefetch(reinterpret_cast<const char*>(block.own_lines()) + ahead + 64 * line, _MM_HINT_T0);
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

template <typename P>
void quantised(const MatmulJob& job) {
  using Fn = void (*)(const MatmulJob&);
  static constexpr Fn kFused[kMaxTileRows] = {fused<P, 1>, fused<P, 2>,  fused<P, 3>,  fused<P, 4>,
                                              fused<P, 5>, fused<P, 6>,  fused<P, 7>,  fused<P, 8>,
                                              fused<P, 9>, fused<P, 10>, fused<P, 11>, fused<P, 12>};
  kFused[job.x->rows_per_tile - 1](job);
}

}  // namespace

void quantised_matmul(const MatmulJob& job) {
  if (job.x->rows > kFusedRows) return panel_matmul(job);
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
