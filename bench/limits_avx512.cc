// Peak arithmetic of AVX-512, compiled for it alone: long independent chains of one instruction, nothing from memory.
#include <immintrin.h>

#include <cstdint>

namespace tie::bench {

// Runs n iterations of 12 dpbusd (64 multiply-adds each); returns a value so that nothing is removed.
int avx512_int8(uint64_t n) {
  __m512i a[12], w = _mm512_set1_epi8(3), x = _mm512_set1_epi8(1);
  for (auto& v : a) v = _mm512_setzero_si512();
  for (uint64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (auto& v : a) asm volatile("vpdpbusd %2, %1, %0" : "+v"(v) : "v"(w), "v"(x));
  }
  for (int i = 1; i < 12; ++i) a[0] = _mm512_add_epi32(a[0], a[i]);
  return _mm512_reduce_add_epi32(a[0]);
}

// 12 fused multiply-adds of 16 floats an iteration.
float avx512_fp32(uint64_t n) {
  __m512 a[12], w = _mm512_set1_ps(0.5f), x = _mm512_set1_ps(0.25f);
  for (auto& v : a) v = _mm512_setzero_ps();
  for (uint64_t i = 0; i < n; ++i) {
#pragma GCC unroll 12
    for (auto& v : a) asm volatile("vfmadd231ps %2, %1, %0" : "+v"(v) : "v"(w), "v"(x));
  }
  for (int i = 1; i < 12; ++i) a[0] = _mm512_add_ps(a[0], a[i]);
  return _mm512_reduce_add_ps(a[0]);
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
  return static_cast<uint64_t>(_mm512_reduce_add_epi64(_mm512_add_epi64(_mm512_add_epi64(a[0], a[1]), _mm512_add_epi64(a[2], a[3]))));
}

}  // namespace tie::bench
