// What simd/q8_attention.inc.h needs of AVX2. Included after vector.inc.h.

// 16 sums of four products, each as two sums of two.
struct D {
  __m256i v[4];
  struct Bytes {
    __m256i words[4];
  };
  using Four = __m256i;
  static constexpr uint32_t kRows = 2, kSums = 2;
  static D start(int32_t first) {
    const __m256i both = _mm256_set1_epi64x(static_cast<int64_t>(static_cast<uint32_t>(first)));
    return {{both, both, both, both}};
  }
  static __m128i quarter(const std::byte* p, uint32_t i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * i));
  }
  static Bytes load_unsigned(const std::byte* p) {
    Bytes out;
    for (uint32_t i = 0; i < 4; ++i) out.words[i] = _mm256_cvtepu8_epi16(quarter(p, i));
    return out;
  }
  static Bytes load_signed(const std::byte* p) {
    Bytes out;
    for (uint32_t i = 0; i < 4; ++i) out.words[i] = _mm256_cvtepi8_epi16(quarter(p, i));
    return out;
  }
  static __m128i word(const void* p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    return _mm_cvtsi32_si128(four);
  }
  static Four four_signed(const int8_t* p) { return _mm256_broadcastq_epi64(_mm_cvtepi8_epi16(word(p))); }
  static Four four_unsigned(const uint8_t* p) { return _mm256_broadcastq_epi64(_mm_cvtepu8_epi16(word(p))); }
  void add_keys(const Bytes& bytes, Four four) {
    for (uint32_t i = 0; i < 4; ++i) v[i] = _mm256_add_epi32(v[i], _mm256_madd_epi16(bytes.words[i], four));
  }
  void add_values(Four four, const Bytes& bytes) { add_keys(bytes, four); }
  static __m256 halves(__m256i low, __m256i high) {  // sums 0, 1, 4, 5 and 2, 3, 6, 7 of pairs: put in order
    return _mm256_cvtepi32_ps(_mm256_permute4x64_epi64(_mm256_hadd_epi32(low, high), 0xd8));
  }
  V floats() const { return {halves(v[0], v[1]), halves(v[2], v[3])}; }
};

// Sums and differences of elements H apart.
template <uint32_t H>
static inline __m256 q8_butterfly_half(__m256 x) {
  __m256 other;
  if constexpr (H == 1) other = _mm256_permute_ps(x, 0xb1);
  if constexpr (H == 2) other = _mm256_permute_ps(x, 0x4e);
  if constexpr (H == 4) other = _mm256_permute2f128_ps(x, x, 0x01);
  constexpr int kSecond = H == 1 ? 0xaa : H == 2 ? 0xcc : 0xf0;
  return _mm256_blend_ps(_mm256_add_ps(x, other), _mm256_sub_ps(other, x), kSecond);
}
template <uint32_t H>
static inline V q8_butterfly(V x) {
  if constexpr (H == 8)
    return {_mm256_add_ps(x.a, x.b), _mm256_sub_ps(x.a, x.b)};
  else
    return {q8_butterfly_half<H>(x.a), q8_butterfly_half<H>(x.b)};
}

static inline void q8_codes16(int8_t* codes, V x) {
  const __m256i words =
      _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes),
                   _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

static inline int32_t q8_sum16(const int8_t* codes) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  const __m128i sums = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(static_cast<char>(0x80))), _mm_setzero_si128());
  return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128;
}

// The codes of x to byte `at` of each of 16 words. Other bytes are not touched: other threads may be writing them.
static inline void q8_scatter_codes(std::byte* words, uint32_t at, V x) {
  alignas(16) int8_t codes[16];
  q8_codes16(codes, x);
  for (uint32_t i = 0; i < 16; ++i) words[4 * i + at] = static_cast<std::byte>(codes[i]);
}

// x as its floor n and a fraction.
static inline void q8_split(V x, V& n, V& f) {
  n = {_mm256_floor_ps(x.a), _mm256_floor_ps(x.b)};
  f = V::sub(x, n);
}

// x * 2^exponent for exponents up to 0, in two exact steps and one rounded: it may leave the range of normal numbers.
static inline V q8_scale_by(V x, V exponent) {
  const V tiny = V::set(-200.0f), bounded = V::max(exponent, tiny), first = V::round(V::mul(bounded, V::set(0.5f)));
  const V y = V::mul(V::mul(x, V::power_of_two(first)), V::power_of_two(V::sub(bounded, first)));
  return V::zero_where(V::less(exponent, tiny), y);
}

// Four groups of 16 weights, rounded to bytes; group g's four of quad l go to [16 * l + 4 * g].
static inline __m256i q8_weights32(__m256 a, __m256 b, __m256 c, __m256 d) {
  return _mm256_packus_epi16(_mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b)),
                             _mm256_packs_epi32(_mm256_cvtps_epi32(c), _mm256_cvtps_epi32(d)));
}
static inline void q8_weights64(uint8_t* out, V a, V b, V c, V d) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(out), q8_weights32(a.a, b.a, c.a, d.a));
  _mm256_store_si256(reinterpret_cast<__m256i*>(out + 32), q8_weights32(a.b, b.b, c.b, d.b));
}

template <uint32_t R>
static inline void q8_fold_sum(const V (&v)[R], float* out) {
  for (uint32_t r = 0; r < R; ++r) out[r] = V::fold(v[r]);
}
template <uint32_t R>
static inline void q8_fold_max(const V (&v)[R], float* out) {
  for (uint32_t r = 0; r < R; ++r) out[r] = V::fold_max(v[r]);
}
