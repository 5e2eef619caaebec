// How the codes and scales of Q5, Q6 and Q8 tiles come into registers. Included inside the anonymous namespace of a
// file compiled with AVX-512 and GFNI, after dot.inc.h.

// What one block of a packing needs: codes of group g, where scales lie. kHalves: two scales per block.
struct Q5 {
  static constexpr bool kMinimum = true, kHalves = false;
  static constexpr int kLines = 6;
  __m512i v[4];
  const std::byte* tile;
  explicit Q5(const std::byte* strip, uint32_t b) {
    tile = strip + size_t{b} * kQ5TileBytes;
    for (int j = 0; j < 4; ++j) v[j] = load(tile + 64 * j);
  }
  template <int G>
  __m512i codes() const {
    const __m512i nibbles = G < 4 ? low_nibbles(v[G & 3]) : high_nibbles(v[G & 3]);
    uint64_t bits;
    __builtin_memcpy(&bits, tile + 256 + 8 * G, 8);
    return _mm512_mask_add_epi8(nibbles, _cvtu64_mask64(bits), nibbles, _mm512_set1_epi8(16));
  }
  __m512 scale(int) const { return halves(tile + 320); }
  __m512 minimum() const { return halves(tile + 352); }
  const std::byte* own_lines() const { return tile; }
  static constexpr size_t kBlockBytes = kQ5TileBytes;
};

struct Q6 {
  static constexpr bool kMinimum = false, kHalves = true;
  static constexpr int kLines = 7;
  __m512i v[4], pairs[2];
  const std::byte* tile;
  explicit Q6(const std::byte* strip, uint32_t b) {
    tile = strip + size_t{b} * kQ6TileBytes;
    for (int j = 0; j < 4; ++j) v[j] = load(tile + 64 * j);
    pairs[0] = load(tile + 256);
    pairs[1] = load(tile + 320);
  }
  template <int G>
  __m512i codes() const {
    const __m512i nibbles = G < 4 ? low_nibbles(v[G & 3]) : high_nibbles(v[G & 3]), p = pairs[G / 4];
    constexpr int kAt = G % 4;
    const __m512i moved = kAt == 0   ? _mm512_slli_epi16(p, 4)
                          : kAt == 1 ? _mm512_slli_epi16(p, 2)
                          : kAt == 2 ? p
                                     : _mm512_srli_epi16(p, 2);
    return _mm512_or_si512(nibbles, _mm512_and_si512(moved, _mm512_set1_epi8(0x30)));
  }
  __m512 scale(int half) const { return halves(tile + 384 + 32 * half); }
  __m512 minimum() const { return _mm512_setzero_ps(); }
  const std::byte* own_lines() const { return tile; }
  static constexpr size_t kBlockBytes = kQ6TileBytes;
};

struct Q8 {
  static constexpr bool kMinimum = false, kHalves = false;
  static constexpr int kLines = 9;
  const std::byte* tile;
  uint32_t odd;
  explicit Q8(const std::byte* strip, uint32_t b) : tile(strip + size_t{b / 2} * kQ8TileBytes), odd(b & 1) {}
  template <int G>
  __m512i codes() const {
    return load(tile + 512 * odd + 64 * G);
  }
  __m512 scale(int) const { return halves(tile + 1024 + 32 * odd); }
  const std::byte* own_lines() const { return tile + 576 * odd; }  // of the 17 lines of two blocks
  __m512 minimum() const { return _mm512_setzero_ps(); }
  static constexpr size_t kBlockBytes = kQ8TileBytes / 2;
};

template <typename P>
size_t strip_stride(uint32_t blocks) {
  if constexpr (__is_same(P, Q8)) return size_t{(blocks + 1) / 2} * kQ8TileBytes;
  return blocks * P::kBlockBytes;
}

// Where the integer sums start so that codes count from zero.
template <typename P>
inline __m512i start_sum(const int32_t* neg128, const int32_t* neg32, uint32_t r) {
  if constexpr (__is_same(P, Q8)) return _mm512_set1_epi32(neg128[r]);
  if constexpr (__is_same(P, Q6)) return _mm512_set1_epi32(neg32[r]);
  return _mm512_setzero_si512();
}
