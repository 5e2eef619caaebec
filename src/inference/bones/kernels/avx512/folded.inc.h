// Pieces of products with Q4 tiles. Included inside the anonymous namespace of a file compiled with AVX-512 VNNI, after
// dot.inc.h.

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

inline size_t folded_strip_bytes(uint32_t blocks) {
  return size_t{blocks} * kQ4TileBytes + kQ4UnitBytes;
}
