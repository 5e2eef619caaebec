// Pieces of every quantised product. Included inside the anonymous namespace of a file compiled with AVX-512 VNNI and
// GFNI. Multiply-adds are assembly because the compiler copies their accumulators otherwise.

inline void dot(__m512i& acc, __m512i w, __m512i x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x));
}
inline void dot_broadcast(__m512i& acc, __m512i w, const int8_t* x) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*reinterpret_cast<const int32_t*>(x)));
}
inline __m512i load(const std::byte* p) {
  return _mm512_loadu_si512(p);
}
inline __m512 halves(const std::byte* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline __m512i low_nibbles(__m512i v) {
  return _mm512_and_si512(v, _mm512_set1_epi8(15));
}
inline __m512i high_nibbles(__m512i v) {
  return _mm512_gf2p8affine_epi64_epi8(v, _mm512_set1_epi64(0x1020408000000000), 0);
}  // v >> 4 in each byte

inline void finish(float* out, __m512 acc, bool add) {
  _mm512_storeu_ps(out, add ? _mm512_add_ps(_mm512_loadu_ps(out), acc) : acc);
}

// Takes the lines of a strip's results from the core that has them while the products are computed. In assembly because
// the compiler knows the instruction as one of another set; every CPU with AVX-512 has it.
inline void fetch_to_write(const float* out, size_t stride, uint32_t rows) {
  for (uint32_t r = 0; r < rows; ++r) asm volatile("prefetchw %0" : : "m"(out[r * stride]));
}

// Fetches the tile's share of what comes after the panel at hand.
inline void prefetch_share(const std::byte* next, size_t bytes, uint32_t tile, uint32_t tiles) {
  for (size_t at = bytes * tile / tiles / 64 * 64; at < bytes * (tile + 1) / tiles; at += 64)
    _mm_prefetch(reinterpret_cast<const char*>(next) + at, _MM_HINT_T1);
}
