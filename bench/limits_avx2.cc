// Peak arithmetic of AVX2, compiled for it alone: independent chains, nothing from memory. It has no dot product of
// bytes: what its kernels use in place of one takes three instructions.
#include <immintrin.h>

#include <cstdint>

#include "bench/limits.h"

namespace tie::bench {

void avx2_int8(uint64_t n) {
  const __m256i w = _mm256_set1_epi8(3), x = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(1);
  __m256i a0 = _mm256_setzero_si256(), a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0;
#define TIE_DOT(i)                                                                   \
  {                                                                                  \
    __m256i t;                                                                       \
    asm volatile("vpmaddubsw %3, %2, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0" \
                 : "+x"(a##i), "=&x"(t)                                              \
                 : "x"(w), "x"(x), "x"(ones));                                       \
  }
  for (uint64_t i = 0; i < n; ++i) {
    TIE_DOT(0) TIE_DOT(1) TIE_DOT(2) TIE_DOT(3) TIE_DOT(4) TIE_DOT(5) TIE_DOT(6) TIE_DOT(7)
  }
}

void avx2_fp32(uint64_t n) {
  const __m256 w = _mm256_set1_ps(0.5f), x = _mm256_set1_ps(0.25f);
  __m256 a0 = _mm256_setzero_ps(), a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0, a8 = a0, a9 = a0,
         a10 = a0, a11 = a0;
#define TIE_FMA(i) asm volatile("vfmadd231ps %2, %1, %0" : "+x"(a##i) : "x"(w), "x"(x));
  for (uint64_t i = 0; i < n; ++i) {
    TIE_FMA(0)
    TIE_FMA(1)
    TIE_FMA(2) TIE_FMA(3) TIE_FMA(4) TIE_FMA(5) TIE_FMA(6) TIE_FMA(7) TIE_FMA(8) TIE_FMA(9) TIE_FMA(10) TIE_FMA(11)
  }
}

uint64_t avx2_read(const void* memory, uint64_t bytes) {
  const char* p = static_cast<const char*>(memory);
  __m256i a = _mm256_setzero_si256(), b = a;
  for (uint64_t at = 0; at + 64 <= bytes; at += 64) {
    _mm_prefetch(p + at + 3072, _MM_HINT_T0);
    a = _mm256_add_epi64(a, _mm256_load_si256(reinterpret_cast<const __m256i*>(p + at)));
    b = _mm256_add_epi64(b, _mm256_load_si256(reinterpret_cast<const __m256i*>(p + at + 32)));
  }
  alignas(32) uint64_t lanes[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), _mm256_add_epi64(a, b));
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

}  // namespace tie::bench
