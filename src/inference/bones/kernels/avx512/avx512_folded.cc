// Products with Q4 tiles and few rows by AVX-512 VNNI: integers throughout a scale group of up to kScaleBlocks blocks,
// one float operation for each group. Per row, 16 columns and block: 8 dpbusd, 1 dpwssd that applies scale and minimum,
// and half an operation of float, against 4 where every block is scaled in float.
#include <immintrin.h>

#include "inference/bones/kernels/avx512/avx512.h"
#include "inference/bones/kernels/packing_ids.h"

namespace tie::bones::avx512 {
namespace {

#include "inference/bones/kernels/avx512/dot.inc.h"
#include "inference/bones/kernels/avx512/folded.inc.h"

template <int R, int J>
inline void fused_groups(const std::byte* tile, const int8_t* codes, __m512i (&d)[R]) {
  const __m512i v = load(tile + 64 * J), low = low_nibbles(v);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) dot_broadcast(d[r], low, codes + (J * R + r) * 4);
  const __m512i high = high_nibbles(v);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) dot_broadcast(d[r], high, codes + ((J + 4) * R + r) * 4);
}

template <int R>
inline void fused_block(const std::byte* tile, const int8_t* codes, const int32_t* start, __m512i (&sum)[R]) {
  __m512i d[R];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) d[r] = _mm512_set1_epi32(start[r]);
  fused_groups<R, 0>(tile, codes, d);
  fused_groups<R, 1>(tile, codes, d);
  fused_groups<R, 2>(tile, codes, d);
  fused_groups<R, 3>(tile, codes, d);
  const __m512i words = load(tile + 256);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) scale_dot(sum[r], d[r], words);
}

// One strip by the R rows of a tile. Prefetches 3 KB ahead in its own stream, or with `spread` (several tiles read the
// same strip) its share of the next strip.
template <int R>
void fused_strip(const std::byte* strip, const Activations& x, uint32_t tile, size_t spread, float* out, size_t stride,
                 bool add) {
  const uint32_t blocks = x.blocks(), tiles = spread != 0 ? x.tiles() : 1;
  const size_t first = size_t{tile} * blocks, ahead = spread != 0 ? spread : 3072;
  const int8_t* codes = x.codes + first * 32 * R;
  const int32_t* start = x.start4 + first * R;
  const float* scale = x.scale + first * R;
  const std::byte* at = strip;
  const uint32_t rows = x.rows - tile * R < R ? x.rows - tile * R : R;
  out += size_t{tile} * R * stride;
  fetch_to_write(out, stride, rows);
  Totals<R> totals;
  uint32_t turn = tile % tiles;
  for (uint32_t b = 0; b < blocks; b += kScaleBlocks, scale += kScaleBlocks * R) {
    __m512i sum[R];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) sum[r] = _mm512_setzero_si512();
    for (uint32_t n = blocks_of_group(b, blocks); n > 0; --n, at += kQ4TileBytes, codes += 32 * R, start += R) {
      if (turn == 0) {
        for (int line = 0; line < 5; ++line)
          _mm_prefetch(reinterpret_cast<const char*>(at) + ahead + 64 * line, _MM_HINT_T0);
        turn = tiles;
      }
      --turn;
      fused_block<R>(at, codes, start, sum);
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) totals.add(r, sum[r], scale[r]);
    totals.keep_in_memory();
  }
  const __m512 unit = _mm512_loadu_ps(reinterpret_cast<const float*>(at));
  for (uint32_t r = 0; r < rows; ++r)
    finish(out + r * stride, _mm512_mul_ps(_mm512_load_ps(totals.value[r]), unit), add);
}

template <int R>
void fused(const MatmulJob& job) {
  const uint32_t tiles = job.x->tiles();
  const size_t bytes = folded_strip_bytes(job.x->blocks()), spread = tiles > 1 ? bytes : 0;
  const std::byte* strip = job.w.data + job.first_strip * bytes;
  for (uint32_t s = 0; s < job.n_strips; ++s, strip += bytes)
    for (uint32_t tile = 0; tile < tiles; ++tile)
      fused_strip<R>(strip, *job.x, tile, spread, job.out + s * kStrip, job.out_stride, job.add);
}

}  // namespace

void folded_matmul(const MatmulJob& job) {
  using Fn = void (*)(const MatmulJob&);
  static constexpr Fn kFused[kMaxTileRows] = {fused<1>, fused<2>, fused<3>, fused<4>,  fused<5>,  fused<6>,
                                              fused<7>, fused<8>, fused<9>, fused<10>, fused<11>, fused<12>};
  kFused[job.x->rows_per_tile - 1](job);
}

}  // namespace tie::bones::avx512
