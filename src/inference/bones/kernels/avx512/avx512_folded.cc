// Products with Q4 tiles by AVX-512 VNNI: integers throughout a scale group of up to kScaleBlocks blocks, one float
// operation for each group. Per row, 16 columns and block: 8 dpbusd, 1 dpwssd that applies scale and minimum, and half
// an operation of float, against 4 where every block is scaled in float. Shapes as in avx512_matmul.cc.
#include <immintrin.h>

#include "inference/bones/kernels/avx512/avx512.h"
#include "inference/bones/kernels/packing_ids.h"

namespace tie::bones::avx512 {
namespace {

#include "inference/bones/kernels/avx512/dot.inc.h"

// acc += low(d) * low(words) + high(d) * high(words), in 16-bit halves.
inline void scale_dot(__m512i& acc, __m512i d, __m512i words) {
  asm("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(d), "v"(words));
}

// The float totals stay in memory: registers are for integer sums, and they are touched once in a group.
template <int N>
struct Totals {
  alignas(64) float value[N][16];
  // Each vector by an instruction of its own: the compiler would call memset or write "rep stos", which takes as long
  // as a block.
  Totals() {
    const __m512 zero = _mm512_setzero_ps();
#pragma GCC unroll 14
    for (int i = 0; i < N; ++i) asm("vmovaps %1, %0" : "=m"(value[i]) : "v"(zero));
  }
  void add(int i, __m512i sum, float scale) {
    _mm512_store_ps(value[i],
                    _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(scale), _mm512_load_ps(value[i])));
  }
  void keep_in_memory() { asm volatile("" : : "r"(this) : "memory"); }
};

inline uint32_t blocks_of_group(uint32_t first, uint32_t blocks) {
  return blocks - first < kScaleBlocks ? blocks - first : kScaleBlocks;
}

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
  const uint32_t rows = x.rows - tile * R < R ? x.rows - tile * R : R;
  out += size_t{tile} * R * stride;
  for (uint32_t r = 0; r < rows; ++r)
    finish(out + r * stride, _mm512_mul_ps(_mm512_load_ps(totals.value[r]), unit), add);
}

inline size_t strip_stride(uint32_t blocks) {
  return size_t{blocks} * kQ4TileBytes + kQ4UnitBytes;
}

template <int R>
void fused(const MatmulJob& job) {
  const uint32_t tiles = job.x->tiles();
  const size_t bytes = strip_stride(job.x->blocks()), spread = tiles > 1 ? bytes : 0;
  const std::byte* strip = job.w.data + job.first_strip * bytes;
  for (uint32_t s = 0; s < job.n_strips; ++s, strip += bytes)
    for (uint32_t tile = 0; tile < tiles; ++tile)
      fused_strip<R>(strip, *job.x, tile, spread, job.out + s * kStrip, job.out_stride, job.add);
}

// ---- many rows: a panel of S strips in scratch, codes [block][group][S][64 bytes], then words [block][S][64] ----

template <int S>
void unpack(const std::byte* strip, uint32_t s, uint32_t blocks, std::byte* codes, std::byte* words) {
  for (uint32_t b = 0; b < blocks; ++b, strip += kQ4TileBytes, codes += 512 * S, words += 64 * S) {
    for (uint32_t j = 0; j < 4; ++j) {
      const __m512i v = load(strip + 64 * j);
      _mm512_store_si512(codes + (j * S + s) * 64, low_nibbles(v));
      _mm512_store_si512(codes + ((j + 4) * S + s) * 64, high_nibbles(v));
    }
    _mm512_store_si512(words + 64 * s, load(strip + 256));
  }
}

template <int S>
void panel_tile(const std::byte* w, const std::byte* words, const __m512 (&unit)[S], const Activations& x,
                uint32_t tile, float* out, size_t stride, bool add) {
  const uint32_t blocks = x.blocks();
  const size_t first = size_t{tile} * blocks;
  const int8_t* codes = x.codes + first * 32 * kPanelRows;
  const int32_t* start = x.start4 + first * kPanelRows;
  const float* scale = x.scale + first * kPanelRows;
  const uint32_t rows = x.rows - tile * kPanelRows < kPanelRows ? x.rows - tile * kPanelRows : kPanelRows;
  out += size_t{tile} * kPanelRows * stride;
  for (uint32_t r = 0; r < rows; ++r)
    for (int s = 0; s < S; ++s) __builtin_prefetch(out + r * stride + 16 * s, 1, 3);
  Totals<kPanelRows * S> totals;
  for (uint32_t b = 0; b < blocks; b += kScaleBlocks, scale += kScaleBlocks * kPanelRows) {
    __m512i sum[kPanelRows][S];
#pragma GCC unroll 7
    for (uint32_t r = 0; r < kPanelRows; ++r)
#pragma GCC unroll 2
      for (int s = 0; s < S; ++s) sum[r][s] = _mm512_setzero_si512();
    for (uint32_t n = blocks_of_group(b, blocks); n > 0;
         --n, w += 512 * S, words += 64 * S, codes += 32 * kPanelRows, start += kPanelRows) {
      __m512i d[kPanelRows][S];
#pragma GCC unroll 7
      for (uint32_t r = 0; r < kPanelRows; ++r)
#pragma GCC unroll 2
        for (int s = 0; s < S; ++s) d[r][s] = _mm512_set1_epi32(start[r]);
      for (uint32_t line = 0; line < 4; ++line)  // the next tile's
        _mm_prefetch(reinterpret_cast<const char*>(codes) + size_t{blocks} * 32 * kPanelRows + 64 * line, _MM_HINT_T0);
      panel_groups<S>(w, codes, 0, 8, d);
#pragma GCC unroll 2
      for (int s = 0; s < S; ++s) {
        const __m512i word = load(words + 64 * s);
#pragma GCC unroll 7
        for (uint32_t r = 0; r < kPanelRows; ++r) scale_dot(sum[r][s], d[r][s], word);
      }
    }
#pragma GCC unroll 7
    for (uint32_t r = 0; r < kPanelRows; ++r)
#pragma GCC unroll 2
      for (int s = 0; s < S; ++s) totals.add(static_cast<int>(r) * S + s, sum[r][s], scale[r]);
    totals.keep_in_memory();
  }
  for (uint32_t r = 0; r < rows; ++r)
    for (int s = 0; s < S; ++s)
      finish(out + r * stride + 16 * s,
             _mm512_mul_ps(_mm512_load_ps(totals.value[static_cast<int>(r) * S + s]), unit[s]), add);
}

template <int S>
void panel_strips(const MatmulJob& job, uint32_t strip) {
  const uint32_t blocks = job.x->blocks(), tiles = job.x->tiles();
  const size_t bytes = strip_stride(blocks);
  std::byte *codes = job.scratch, *words = codes + size_t{blocks} * 512 * S;
  const std::byte* from = job.w.data + (size_t{job.first_strip} + strip) * bytes;
  __m512 unit[S];
  for (uint32_t s = 0; s < S; ++s) {
    unpack<S>(from + s * bytes, s, blocks, codes, words);
    unit[s] = _mm512_loadu_ps(reinterpret_cast<const float*>(from + (s + 1) * bytes - kQ4UnitBytes));
  }
  for (uint32_t tile = 0; tile < tiles; ++tile) {
    prefetch_share(from + S * bytes, S * bytes, tile, tiles);
    panel_tile<S>(codes, words, unit, *job.x, tile, job.out + strip * kStrip, job.out_stride, job.add);
  }
}

}  // namespace

void folded_matmul(const MatmulJob& job) {
  using Fn = void (*)(const MatmulJob&);
  static constexpr Fn kFused[kMaxTileRows] = {fused<1>, fused<2>, fused<3>, fused<4>,  fused<5>,  fused<6>,
                                              fused<7>, fused<8>, fused<9>, fused<10>, fused<11>, fused<12>};
  if (job.x->rows <= kFusedRows) return kFused[job.x->rows_per_tile - 1](job);
  uint32_t strip = 0;
  for (; strip + 2 <= job.n_strips; strip += 2) panel_strips<2>(job, strip);
  if (strip < job.n_strips) panel_strips<1>(job, strip);
}

}  // namespace tie::bones::avx512
