// Attention over f16 keys and values in half-precision arithmetic (AVX-512 FP16): twice the lanes of f32 and no
// conversion of what is read. Accuracy is kept by short half-precision sums: 32 products of q and k, 64 of weights and
// values, then f32. Weights are scaled by 2^-6 so that a sum of 64 cannot overflow. Everything else (softmax, merging)
// is f32. fp16_twin.cc does the same arithmetic one number at a time.
#include <immintrin.h>

#include "inference/bones/kernels/avx512fp16/avx512fp16.h"

namespace tie::bones::avx512fp16 {
namespace {

constexpr uint32_t kPairsPerSum = 32;  // pairs of head dimensions whose products one half-precision sum takes
constexpr uint32_t kKeysPerSum = 64;

// block_tokens is a power of two; a division for each group would cost as much as the group's loads.
inline const std::byte* kv_block(const AttentionJob& job, uint32_t key) {
  return job.kv + size_t{job.block_table[key >> __builtin_ctz(job.block_tokens)]} * job.block_stride;
}
inline uint32_t slot_of(const AttentionJob& job, uint32_t key) {
  return key & (job.block_tokens - 1);
}
inline const std::byte* key_group(const AttentionJob& job, uint32_t key) {
  return kv_block(job, key) + size_t{slot_of(job, key) / 16} * job.head_dim * 32;
}
inline const std::byte* value_group(const AttentionJob& job, uint32_t key) {
  return kv_block(job, key) + (size_t{job.block_tokens} + slot_of(job, key)) * job.head_dim * 2;
}
inline __m512h load_halves(const std::byte* p) {
  return _mm512_castsi512_ph(_mm512_loadu_si512(p));
}
// Lane t of each: sums of pair t's first and second elements, added in f32.
inline __m512 add_pairs(__m512h v) {
  const __m512i apart = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26, 24, 22,
                                         20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i halves = _mm512_permutexvar_epi16(apart, _mm512_castph_si512(v));
  return _mm512_add_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(halves)),
                       _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)));
}
inline __m512 low_floats(__m512h v) {
  return _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_castph_si512(v)));
}
inline __m512 high_floats(__m512h v) {
  return _mm512_cvtph_ps(_mm512_extracti64x4_epi64(_mm512_castph_si512(v), 1));
}

struct Span {
  uint32_t begin, end;
};  // keys of a block that any row sees

Span visible(const AttentionJob& job, uint32_t start) {
  Span span{start + kKeyBlock, start};
  for (uint32_t r = 0; r < job.n_rows; ++r) {
    const uint32_t begin = job.key_begin[r] > start ? job.key_begin[r] : start,
                   end = job.key_end[r] < start + kKeyBlock ? job.key_end[r] : start + kKeyBlock;
    if (begin >= end) continue;
    span.begin = begin < span.begin ? begin : span.begin;
    span.end = end > span.end ? end : span.end;
  }
  return span;
}

// Scores of G groups of 16 keys from `key` on, for head dimensions [2 * pair, 2 * (pair + pairs)); added to `scores`
// when it is not the first part.
template <uint32_t R, uint32_t G, bool Prefetch>
inline void score_part(const AttentionJob& job, uint32_t key, uint32_t end, uint32_t pair, uint32_t pairs,
                       float (*scores)[kKeyBlock]) {
  const std::byte *k[G], *next[G], *values[G];
  for (uint32_t g = 0; g < G; ++g) {
    k[g] = key_group(job, key + 16 * g) + size_t{pair} * 64;
    if constexpr (Prefetch) {
      values[g] = value_group(job, key + 16 * g) + size_t{pair} * 64;
      next[g] = key + 16 * g + kKeyBlock < end ? key_group(job, key + 16 * g + kKeyBlock) + size_t{pair} * 64 : k[g];
    }
  }
  const size_t row = size_t{job.head_dim} * 2;
  const std::byte* q = job.prepared + size_t{pair} * 4;
  __m512h sum[R][G];
  for (uint32_t r = 0; r < R; ++r)
    for (uint32_t g = 0; g < G; ++g) sum[r][g] = _mm512_setzero_ph();
  for (uint32_t i = 0; i < pairs; ++i) {
    __m512h keys[G];
    for (uint32_t g = 0; g < G; ++g) {
      keys[g] = load_halves(k[g] + 64 * i);
      if constexpr (Prefetch) {
        _mm_prefetch(reinterpret_cast<const char*>(values[g] + 64 * i), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(next[g] + 64 * i), _MM_HINT_T0);
      }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < R; ++r) {
      int32_t two;
      __builtin_memcpy(&two, q + r * row + 4 * i, 4);
      const __m512h x = _mm512_castsi512_ph(_mm512_set1_epi32(two));
#pragma GCC unroll 2
      for (uint32_t g = 0; g < G; ++g) sum[r][g] = _mm512_fmadd_ph(x, keys[g], sum[r][g]);
    }
  }
  for (uint32_t r = 0; r < R; ++r) {
    for (uint32_t g = 0; g < G; ++g) {
      float* s = scores[r] + key % kKeyBlock + 16 * g;
      const __m512 part = add_pairs(sum[r][g]);
      _mm512_store_ps(s, pair == 0 ? part : _mm512_add_ps(_mm512_load_ps(s), part));
    }
  }
}

// 2^x for x <= 0, relative error below 1e-5 (weights are rounded to half afterwards); -infinity gives 0.
inline __m512 exp2_rough(__m512 x) {
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(9.6181291e-3f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.5504109e-2f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4022651e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9314718e-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

inline float fold(__m512 v) {  // as kernel_set.h prescribes
  const __m256 s = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  const __m128 u = _mm_add_ps(t, _mm_movehl_ps(t, t));
  return _mm_cvtss_f32(_mm_add_ss(u, _mm_shuffle_ps(u, u, 1)));
}

// exp(score - base) / 64 of 16 keys: returned as floats, stored as halves, twice in each 32-bit lane so that a 32-bit
// broadcast fills a register with one.
inline __m512 store_weights(__m512 score, float base, uint32_t* weights) {
  const __m512i twice = _mm512_set_epi16(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8, 7, 7, 6, 6, 5, 5,
                                         4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
  const __m512 log2e = _mm512_set1_ps(1.44269504f),
               shift = _mm512_fmadd_ps(_mm512_set1_ps(base), log2e, _mm512_set1_ps(6.0f));
  const __m512 p = exp2_rough(_mm512_fmsub_ps(score, log2e, shift));
  const __m256i half = _mm512_cvtps_ph(p, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm512_store_si512(weights, _mm512_permutexvar_epi16(twice, _mm512_castsi256_si512(half)));
  return p;
}

inline __m512 soft_capped(__m512 s, float cap);

// Scores of one row to weights: max, mask, cap.
inline void soften(const AttentionJob& job, uint32_t r, uint32_t start, uint32_t first, uint32_t last, float* s,
                   uint32_t* weights, AttentionPartial& out) {
  const __m512 none = _mm512_set1_ps(-__builtin_inff());
  __m512 top = none;
  const auto begin = static_cast<int32_t>(job.key_begin[r]), end = static_cast<int32_t>(job.key_end[r]);
  for (uint32_t g = first; g < last; ++g) {
    __m512 x = _mm512_load_ps(s + 16 * g);
    if (job.soft_cap > 0.0f) x = soft_capped(x, job.soft_cap);
    const auto key = static_cast<int32_t>(start + 16 * g);
    if (key < begin || key + 16 > end) {
      const __m512i lane = _mm512_add_epi32(_mm512_set1_epi32(key),
                                            _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
      const __mmask16 keep = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(begin)) &
                             _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(end));
      x = _mm512_mask_mov_ps(none, keep, x);
    }
    _mm512_store_ps(s + 16 * g, x);
    top = _mm512_max_ps(top, x);
  }
  const float max = _mm512_reduce_max_ps(top), base = max > -__builtin_inff() ? max : 0.0f;
  __m512 sum = _mm512_setzero_ps();
  for (uint32_t g = first; g < last; ++g)
    sum = _mm512_add_ps(sum, store_weights(_mm512_load_ps(s + 16 * g), base, weights + 16 * g));
  out.max[r] = max;
  out.sum[r] = fold(sum) * 64.0f;
}

// The usual case, in registers: the row sees the whole block and nothing is capped.
inline void soften_whole(uint32_t r, const float* s, uint32_t* weights, AttentionPartial& out) {
  constexpr uint32_t kGroups = kKeyBlock / 16;
  __m512 x[kGroups], top = _mm512_load_ps(s);
  x[0] = top;
#pragma GCC unroll 8
  for (uint32_t g = 1; g < kGroups; ++g) top = _mm512_max_ps(top, x[g] = _mm512_load_ps(s + 16 * g));
  const float max = _mm512_reduce_max_ps(top);
  __m512 sum = _mm512_setzero_ps();
#pragma GCC unroll 8
  for (uint32_t g = 0; g < kGroups; ++g) sum = _mm512_add_ps(sum, store_weights(x[g], max, weights + 16 * g));
  out.max[r] = max;
  out.sum[r] = fold(sum) * 64.0f;
}

// Adds the weighted values of keys [begin, end) (at most kKeysPerSum) to acc, head dimensions [d, d + 32 * C).
template <uint32_t R, uint32_t C>
inline void weigh(const AttentionJob& job, uint32_t begin, uint32_t end, uint32_t d,
                  const uint32_t (*weights)[kKeyBlock], float* acc) {
  __m512h sum[R][C];
  for (uint32_t r = 0; r < R; ++r)
    for (uint32_t c = 0; c < C; ++c) sum[r][c] = _mm512_setzero_ph();
  for (uint32_t key = begin; key < end;) {
    const uint32_t stop = (key / 16 + 1) * 16 < end ? (key / 16 + 1) * 16 : end;
    const std::byte* v = value_group(job, key) + 2 * size_t{d};
    for (; key < stop; ++key, v += 2 * size_t{job.head_dim}) {
      __m512h values[C];
      for (uint32_t c = 0; c < C; ++c) values[c] = load_halves(v + 64 * c);
#pragma GCC unroll 8
      for (uint32_t r = 0; r < R; ++r) {
        const __m512h x = _mm512_castsi512_ph(_mm512_set1_epi32(static_cast<int32_t>(weights[r][key % kKeyBlock])));
#pragma GCC unroll 2
        for (uint32_t c = 0; c < C; ++c) sum[r][c] = _mm512_fmadd_ph(x, values[c], sum[r][c]);
      }
    }
  }
  const __m512 unscale = _mm512_set1_ps(64.0f);
  for (uint32_t r = 0; r < R; ++r) {
    for (uint32_t c = 0; c < C; ++c) {
      float* to = acc + size_t{r} * job.head_dim + d + 32 * c;
      _mm512_storeu_ps(to, _mm512_fmadd_ps(low_floats(sum[r][c]), unscale, _mm512_loadu_ps(to)));
      _mm512_storeu_ps(to + 16, _mm512_fmadd_ps(high_floats(sum[r][c]), unscale, _mm512_loadu_ps(to + 16)));
    }
  }
}

template <uint32_t R>
void attend_rows(const AttentionJob& job, uint32_t key_block, AttentionPartial& out) {
  constexpr bool kPrefetch = R <= 4;  // few rows: a decode step, which waits for memory
  const uint32_t start = key_block * kKeyBlock;
  const Span span = visible(job, start);
  alignas(64) float scores[R][kKeyBlock];
  alignas(64) uint32_t weights[R][kKeyBlock];
  for (uint32_t i = 0; i < R * job.head_dim; i += 16) _mm512_storeu_ps(out.acc + i, _mm512_setzero_ps());
  const bool any = span.begin < span.end;
  const uint32_t first = any ? (span.begin - start) / 16 : 0, last = any ? (span.end - start + 15) / 16 : 0,
                 limit = job.key_end[R - 1];
  for (uint32_t pair = 0; pair < job.head_dim / 2; pair += kPairsPerSum) {
    const uint32_t pairs = job.head_dim / 2 - pair < kPairsPerSum ? job.head_dim / 2 - pair : kPairsPerSum;
    uint32_t g = first;
    for (; g + 2 <= last; g += 2) score_part<R, 2, kPrefetch>(job, start + 16 * g, limit, pair, pairs, scores);
    if (g < last) score_part<R, 1, kPrefetch>(job, start + 16 * g, limit, pair, pairs, scores);
  }
  for (uint32_t r = 0; r < R; ++r) {
    const bool whole = job.key_begin[r] <= start && job.key_end[r] >= start + kKeyBlock && job.soft_cap <= 0.0f;
    if (whole)
      soften_whole(r, scores[r], weights[r], out);
    else
      soften(job, r, start, first, last, scores[r], weights[r], out);
  }
  if (!any) return;
  for (uint32_t half = start; half < start + kKeyBlock; half += kKeysPerSum) {
    const uint32_t begin = span.begin > half ? span.begin : half,
                   end = span.end < half + kKeysPerSum ? span.end : half + kKeysPerSum;
    if (begin >= end) continue;
    uint32_t d = 0;
    for (; d + 64 <= job.head_dim; d += 64) weigh<R, 2>(job, begin, end, d, weights, out.acc);
    for (; d < job.head_dim; d += 32) weigh<R, 1>(job, begin, end, d, weights, out.acc);
  }
}

// tanh by the same 2^x; its error of 1e-5 is far below that of half-precision scores.
inline __m512 soft_capped(__m512 s, float cap) {
  const __m512 sign = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1.0f);
  const __m512 magnitude = _mm512_andnot_ps(sign, _mm512_div_ps(s, _mm512_set1_ps(cap)));
  const __m512 e = exp2_rough(_mm512_mul_ps(magnitude, _mm512_set1_ps(-2.0f * 1.44269504f)));
  const __m512 t = _mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e));
  return _mm512_mul_ps(_mm512_or_ps(t, _mm512_and_ps(sign, s)), _mm512_set1_ps(cap));
}

}  // namespace

bool takes(const AttentionJob& job) {
  return job.type == KvType::kF16 && job.head_dim % 32 == 0;
}

// The rows as halves.
void prepare_queries(const AttentionJob& job) {
  for (uint32_t r = 0; r < job.n_rows; ++r)
    for (uint32_t d = 0; d < job.head_dim; d += 16)
      _mm256_storeu_si256(
          reinterpret_cast<__m256i*>(job.prepared + (size_t{r} * job.head_dim + d) * 2),
          _mm512_cvtps_ph(_mm512_loadu_ps(job.q[r] + d), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

void attend_block(const AttentionJob& job, uint32_t key_block, AttentionPartial& out) {
  using Fn = void (*)(const AttentionJob&, uint32_t, AttentionPartial&);
  static constexpr Fn kRows[kAttentionRows] = {attend_rows<1>, attend_rows<2>, attend_rows<3>, attend_rows<4>,
                                               attend_rows<5>, attend_rows<6>, attend_rows<7>, attend_rows<8>};
  kRows[job.n_rows - 1](job, key_block, out);
}

}  // namespace tie::bones::avx512fp16
