// Peak arithmetic of AVX-512, compiled for it alone: long independent chains of one instruction, nothing from memory.
#include <immintrin.h>

#include <cstdint>

namespace tie::bench {

// Twelve accumulators by name: an array of them would live in memory.
#define TIE_TWELVE(op) op(0) op(1) op(2) op(3) op(4) op(5) op(6) op(7) op(8) op(9) op(10) op(11)

// Runs n iterations of 12 dpbusd (64 multiply-adds each); returns a value so that nothing is removed.
int avx512_int8(uint64_t n) {
  const __m512i w = _mm512_set1_epi8(3), x = _mm512_set1_epi8(1);
#define TIE_DECLARE(i) __m512i a##i = _mm512_setzero_si512();
#define TIE_STEP(i) asm volatile("vpdpbusd %2, %1, %0" : "+v"(a##i) : "v"(w), "v"(x));
#define TIE_SUM(i) total += _mm512_reduce_add_epi32(a##i);
  TIE_TWELVE(TIE_DECLARE)
  for (uint64_t i = 0; i < n; ++i) {
    TIE_TWELVE(TIE_STEP)
  }
  int total = 0;
  TIE_TWELVE(TIE_SUM)
  return total;
}
#undef TIE_DECLARE
#undef TIE_STEP
#undef TIE_SUM

// 12 fused multiply-adds of 16 floats an iteration.
float avx512_fp32(uint64_t n) {
  const __m512 w = _mm512_set1_ps(0.5f), x = _mm512_set1_ps(0.25f);
#define TIE_DECLARE(i) __m512 a##i = _mm512_setzero_ps();
#define TIE_STEP(i) asm volatile("vfmadd231ps %2, %1, %0" : "+v"(a##i) : "v"(w), "v"(x));
#define TIE_SUM(i) total += _mm512_reduce_add_ps(a##i);
  TIE_TWELVE(TIE_DECLARE)
  for (uint64_t i = 0; i < n; ++i) {
    TIE_TWELVE(TIE_STEP)
  }
  float total = 0;
  TIE_TWELVE(TIE_SUM)
  return total;
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
