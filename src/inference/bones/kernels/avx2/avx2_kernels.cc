// The AVX2 kernel set (with FMA and F16C). This folder alone is compiled for it. Strips are unpacked to bytes once and
// meet the rows in pairs.
#include <immintrin.h>

#include "inference/bones/kernels/kernel_set.h"
#include "inference/bones/kernels/packing_ids.h"
#include "inference/bones/kernels/q8_cache.h"

namespace tie::bones {
namespace {

#include "inference/bones/kernels/avx2/vector.inc.h"
#include "inference/bones/kernels/simd/float_matmul.inc.h"
#include "inference/bones/kernels/simd/vector_kernels.inc.h"
// Builds on those.
#include "inference/bones/kernels/avx2/q8_vector.inc.h"
#include "inference/bones/kernels/simd/q8_attention.inc.h"

inline __m256i load(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline void put(std::byte* p, __m256i v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
}

// 32 bits to 32 bytes of 16 or 0.
inline __m256i spread_bits(const std::byte* p) {
  uint32_t word;
  __builtin_memcpy(&word, p, 4);
  const __m256i bytes =
      _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int32_t>(word)),
                          _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201ull));
  return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit), _mm256_set1_epi8(16));
}

// Moves bits 2j, 2j+1 of each byte to bits 4, 5 (other bits are masked off by the caller).
inline __m256i align_pair(__m256i v, uint32_t j) {
  return j < 3 ? _mm256_sll_epi16(v, _mm_cvtsi32_si128(static_cast<int>(4 - 2 * j))) : _mm256_srli_epi16(v, 2);
}

// Codes of one block as [group][64 bytes]; Q8 as signed bytes.
inline void unpack_block(uint32_t packing, const std::byte* tile, std::byte* codes) {
  const __m256i nibble = _mm256_set1_epi8(15);
  for (uint32_t j = 0; j < 4; ++j) {
    for (uint32_t half = 0; half < 64; half += 32) {
      const __m256i v = load(tile + 64 * j + half);
      __m256i low = _mm256_and_si256(v, nibble), high = _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
      if (packing == kPackingQ5) {
        low = _mm256_or_si256(low, spread_bits(tile + 256 + 8 * j + half / 8));
        high = _mm256_or_si256(high, spread_bits(tile + 256 + 8 * (j + 4) + half / 8));
      } else if (packing == kPackingQ6) {
        const __m256i pair = _mm256_set1_epi8(0x30);
        const __m256i a = align_pair(load(tile + 256 + half), j), b = align_pair(load(tile + 320 + half), j);
        low = _mm256_or_si256(low, _mm256_and_si256(a, pair));
        high = _mm256_or_si256(high, _mm256_and_si256(b, pair));
      }
      put(codes + 64 * j + half, low);
      put(codes + 64 * (j + 4) + half, high);
    }
  }
}

struct Strip {
  uint32_t packing, blocks;
  const std::byte* data;
  const std::byte* tile(uint32_t b) const {
    switch (packing) {
      case kPackingQ4:
        return data + size_t{b} * kQ4TileBytes;
      case kPackingQ5:
        return data + size_t{b} * kQ5TileBytes;
      case kPackingQ6:
        return data + size_t{b} * kQ6TileBytes;
      default:
        return data + size_t{b / 2} * kQ8TileBytes;
    }
  }
  size_t bytes() const {
    if (packing == kPackingQ8) return size_t{(blocks + 1) / 2} * kQ8TileBytes;
    if (packing == kPackingQ4) return size_t{blocks} * kQ4TileBytes + kQ4UnitBytes;
    return size_t{packing == kPackingQ5 ? kQ5TileBytes : kQ6TileBytes} * blocks;
  }
  V scale(uint32_t b, uint32_t half) const {
    switch (packing) {
      case kPackingQ5:
        return V::load_kv16<false>(tile(b) + 320);
      case kPackingQ6:
        return V::load_kv16<false>(tile(b) + 384 + 32 * half);
      default:
        return V::load_kv16<false>(tile(b) + 1024 + 32 * (b & 1));
    }
  }
  V minimum(uint32_t b) const { return V::load_kv16<false>(tile(b) + 352); }
};

void unpack_strip(const Strip& strip, std::byte* codes) {
  for (uint32_t b = 0; b < strip.blocks; ++b, codes += 512) {
    if (strip.packing != kPackingQ8) {
      unpack_block(strip.packing, strip.tile(b), codes);
      continue;
    }
    const __m256i flip = _mm256_set1_epi8(static_cast<char>(0x80));
    for (uint32_t i = 0; i < 512; i += 32)
      put(codes + i, _mm256_xor_si256(load(strip.tile(b) + 512 * (b & 1) + i), flip));
  }
}

struct Sums {
  __m256i a, b;
};

template <bool Signed>
inline __m256i products(__m256i w, __m256i x) {
  const __m256i ones = _mm256_set1_epi16(1);
  if constexpr (Signed)
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)), ones);
  return _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), ones);
}

// Integer sums of groups [from, to) of one block for R rows at distance `stride` codes.
template <bool Signed, uint32_t R>
inline void sum_groups(const std::byte* w, const int8_t* x, uint32_t tile_rows, uint32_t from, uint32_t to,
                       Sums (&d)[R]) {
  for (uint32_t g = from; g < to; ++g) {
    const __m256i low = load(w + 64 * g), high = load(w + 64 * g + 32);
    for (uint32_t r = 0; r < R; ++r) {
      int32_t four;
      __builtin_memcpy(&four, x + (size_t{g} * tile_rows + r) * 4, 4);
      const __m256i in = _mm256_set1_epi32(four);
      d[r].a = _mm256_add_epi32(d[r].a, products<Signed>(low, in));
      d[r].b = _mm256_add_epi32(d[r].b, products<Signed>(high, in));
    }
  }
}

inline V to_float(Sums d) {
  return {_mm256_cvtepi32_ps(d.a), _mm256_cvtepi32_ps(d.b)};
}

inline void put_outputs(const MatmulJob& job, float* to, V y) {
  V::store(to, job.add ? V::add(V::load(to), y) : y);
}

// Rows of a Q4 strip: integers throughout a scale group.
template <uint32_t R>
void folded_rows(const Strip& strip, const std::byte* codes, const MatmulJob& job, uint32_t row, float* out) {
  const Activations& x = *job.x;
  const uint32_t T = x.rows_per_tile;
  const size_t first = size_t{row / T} * strip.blocks;
  V acc[R];
  for (uint32_t r = 0; r < R; ++r) acc[r] = V::set(0.0f);
  for (uint32_t b = 0; b < strip.blocks;) {
    const size_t scale_at = (first + b) * T + row % T;
    Sums sum[R] = {};
    for (const uint32_t end = b + kScaleBlocks < strip.blocks ? b + kScaleBlocks : strip.blocks; b < end; ++b) {
      Sums d[R];
      for (uint32_t r = 0; r < R; ++r) d[r].a = d[r].b = _mm256_set1_epi32(x.start4[(first + b) * T + row % T + r]);
      sum_groups<false, R>(codes + size_t{b} * 512, x.codes + (first + b) * 32 * T + row % T * 4, T, 0, 8, d);
      const __m256i low = load(strip.tile(b) + 256), high = load(strip.tile(b) + 288);
      for (uint32_t r = 0; r < R; ++r) {
        sum[r].a = _mm256_add_epi32(sum[r].a, _mm256_madd_epi16(d[r].a, low));
        sum[r].b = _mm256_add_epi32(sum[r].b, _mm256_madd_epi16(d[r].b, high));
      }
    }
    for (uint32_t r = 0; r < R; ++r) acc[r] = V::fma(to_float(sum[r]), V::set(x.scale[scale_at + r]), acc[r]);
  }
  const V unit = V::load(reinterpret_cast<const float*>(strip.tile(strip.blocks)));
  for (uint32_t r = 0; r < R; ++r) put_outputs(job, out + (row + r) * job.out_stride, V::mul(acc[r], unit));
}

template <uint32_t Kind, uint32_t R>
void strip_rows(const Strip& strip, const std::byte* codes, const MatmulJob& job, uint32_t row, float* out) {
  if constexpr (Kind == kPackingQ4) return folded_rows<R>(strip, codes, job, row, out);
  const Activations& x = *job.x;
  const uint32_t T = x.rows_per_tile;
  V acc[R];
  for (uint32_t r = 0; r < R; ++r) acc[r] = V::set(0.0f);
  for (uint32_t b = 0; b < strip.blocks; ++b) {
    const size_t block = size_t{row / T} * strip.blocks + b, at = block * T + row % T;
    const int8_t* in = x.codes + block * 32 * T + row % T * 4;
    constexpr uint32_t kHalves = Kind == kPackingQ6 ? 2 : 1;
    for (uint32_t h = 0; h < kHalves; ++h) {
      Sums d[R];
      for (uint32_t r = 0; r < R; ++r) {
        const int32_t start = Kind == kPackingQ6 ? x.neg32[(block * 2 + h) * T + row % T + r] : 0;
        d[r] = {_mm256_set1_epi32(start), _mm256_set1_epi32(start)};
      }
      sum_groups<Kind == kPackingQ8, R>(codes + size_t{b} * 512, in, T, h * 4, kHalves == 2 ? h * 4 + 4 : 8, d);
      const V s = strip.scale(b, h);
      for (uint32_t r = 0; r < R; ++r) acc[r] = V::fma(to_float(d[r]), V::mul(s, V::set(x.scale[at + r])), acc[r]);
    }
    if constexpr (Kind == kPackingQ5) {
      const V m = strip.minimum(b);
      for (uint32_t r = 0; r < R; ++r) acc[r] = V::fma(m, V::set(x.sum[at + r]), acc[r]);
    }
  }
  for (uint32_t r = 0; r < R; ++r) put_outputs(job, out + (row + r) * job.out_stride, acc[r]);
}

template <uint32_t Kind>
void quantised(const MatmulJob& job) {
  Strip strip{Kind, job.x->blocks(), nullptr};
  for (uint32_t s = 0; s < job.n_strips; ++s) {
    strip.data = job.w.data + (size_t{job.first_strip} + s) * strip.bytes();
    unpack_strip(strip, job.scratch);
    for (uint32_t row = 0; row < job.x->rows;) {
      const uint32_t left_in_tile = job.x->rows_per_tile - row % job.x->rows_per_tile;
      if (left_in_tile >= 2 && row + 2 <= job.x->rows) {
        strip_rows<Kind, 2>(strip, job.scratch, job, row, job.out + s * kStrip);
        row += 2;
      } else {
        strip_rows<Kind, 1>(strip, job.scratch, job, row, job.out + s * kStrip);
        row += 1;
      }
    }
  }
}

void matmul(const MatmulJob& job) {
  switch (static_cast<uint32_t>(job.w.packing)) {
    case kPackingQ4:
      return quantised<kPackingQ4>(job);
    case kPackingQ5:
      return quantised<kPackingQ5>(job);
    case kPackingQ6:
      return quantised<kPackingQ6>(job);
    case kPackingQ8:
      return quantised<kPackingQ8>(job);
    case kPackingF16:
      return float_matmul<FloatKind::kF16>(job);
    case kPackingBf16:
      return float_matmul<FloatKind::kBf16>(job);
    default:
      return float_matmul<FloatKind::kF32>(job);
  }
}

}  // namespace

const KernelSet kAvx2Kernels = {
    "avx2",    matmul,    quantize, rms_scale, scale_mul,       scale_mul_add, scale_by,    add,           rotate,
    silu_gate, gelu_gate, soft_cap, store_kv,  prepare_queries, attend_block,  attend_more, merge_partial, q8_turn};

}  // namespace tie::bones
