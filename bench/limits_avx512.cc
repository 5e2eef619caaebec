// Peak arithmetic of AVX-512, compiled for it alone: long independent chains of one instruction, nothing from memory.
#include <immintrin.h>

#include <cstdint>

#include "bench/limits.h"

namespace tie::bench {

// Twelve accumulators by name: an array of them would live in memory.
#define TIE_TWELVE(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11)
#define TIE_DECLARE(i) __m512i a##i = _mm512_setzero_si512();
#define TIE_PEAK(instruction, w, x, n)                                                                                 \
  const __m512i wide_w = (w), wide_x = (x);                                                                            \
  TIE_TWELVE(TIE_DECLARE)                                                                                              \
  for (uint64_t i = 0; i < (n); ++i)                                                                                   \
    asm volatile(instruction                                                                                           \
                 " %13, %12, %0\n\t" instruction " %13, %12, %1\n\t" instruction " %13, %12, %2\n\t" instruction       \
                 " %13, %12, %3\n\t" instruction " %13, %12, %4\n\t" instruction " %13, %12, %5\n\t" instruction       \
                 " %13, %12, %6\n\t" instruction " %13, %12, %7\n\t" instruction " %13, %12, %8\n\t" instruction       \
                 " %13, %12, %9\n\t" instruction " %13, %12, %10\n\t" instruction " %13, %12, %11"                     \
                 : "+v"(a0), "+v"(a1), "+v"(a2), "+v"(a3), "+v"(a4), "+v"(a5), "+v"(a6), "+v"(a7), "+v"(a8), "+v"(a9), \
                   "+v"(a10), "+v"(a11)                                                                                \
                 : "v"(wide_w), "v"(wide_x));

void avx512_int8(uint64_t n) {
  TIE_PEAK("vpdpbusd", _mm512_set1_epi8(3), _mm512_set1_epi8(1), n)
}

void avx512_fp32(uint64_t n) {
  TIE_PEAK("vfmadd231ps", _mm512_castps_si512(_mm512_set1_ps(0.5f)), _mm512_castps_si512(_mm512_set1_ps(0.25f)), n)
}

void avx512_bf16(uint64_t n){
    TIE_PEAK("vdpbf16ps", _mm512_set1_epi16(0x3f00), _mm512_set1_epi16(0x3e80), n)  // 0.5 and 0.25
}

// Sum of 64-byte lines with prefetch: as fast as this core reads.
uint64_t avx512_read(const void* memory, uint64_t bytes) {
  const char* p = static_cast<const char*>(memory);
  __m512i a[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
  for (uint64_t at = 0; at + 256 <= bytes; at += 256) {
    for (int i = 0; i < 4; ++i) {
      _mm_prefetch(p + at + 3072 + 64 * i, _MM_HINT_T0);
      a[i] = _mm512_add_epi64(a[i], _mm512_load_si512(p + at + 64 * i));
    }
  }
  return static_cast<uint64_t>(
      _mm512_reduce_add_epi64(_mm512_add_epi64(_mm512_add_epi64(a[0], a[1]), _mm512_add_epi64(a[2], a[3]))));
}

}  // namespace tie::bench
