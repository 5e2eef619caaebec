// What simd/q8_attention.inc.h needs of AVX-512 VNNI. Included after vector.inc.h. Multiply-adds are assembly because
// the compiler copies their accumulators otherwise.

// 16 sums of four products.
struct D {
  __m512i v;
  using Bytes = __m512i;
  using Four = __m512i;
  static constexpr uint32_t kRows = kAttentionRows, kSums = 16;  // rows of a tile, sums kept in registers
  static D start(int32_t first) { return {_mm512_set1_epi32(first)}; }
  static Bytes load_unsigned(const std::byte* p) { return _mm512_loadu_si512(p); }
  static Bytes load_signed(const std::byte* p) { return _mm512_loadu_si512(p); }
  static Four broadcast(const void* p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
  }
  static Four four_signed(const int8_t* p) { return broadcast(p); }
  static Four four_unsigned(const uint8_t* p) { return broadcast(p); }
  void add_keys(Bytes keys, Four query) { asm("vpdpbusd %2, %1, %0" : "+v"(v) : "v"(keys), "v"(query)); }
  void add_values(Four weights, Bytes values) { asm("vpdpbusd %2, %1, %0" : "+v"(v) : "v"(weights), "v"(values)); }
  V floats() const { return {_mm512_cvtepi32_ps(v)}; }
};

// Sums and differences of elements H apart.
template <uint32_t H>
static inline V q8_butterfly(V x) {
  __m512 other;
  if constexpr (H == 1) other = _mm512_permute_ps(x.v, 0xb1);
  if constexpr (H == 2) other = _mm512_permute_ps(x.v, 0x4e);
  if constexpr (H == 4) other = _mm512_shuffle_f32x4(x.v, x.v, 0xb1);
  if constexpr (H == 8) other = _mm512_shuffle_f32x4(x.v, x.v, 0x4e);
  // The second of a pair takes the difference: times -1 is exact, so one multiply-add does for both.
  constexpr uint32_t kSecond = H == 1 ? 0xaaaa : H == 2 ? 0xcccc : H == 4 ? 0xf0f0 : 0xff00;
  const __m512 sign = _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), kSecond, _mm512_set1_ps(-1.0f));
  return {_mm512_fmadd_ps(x.v, sign, other)};
}

static inline void q8_codes16(int8_t* codes, V x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x.v)));
}

static inline int32_t q8_sum16(const int8_t* codes) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  const __m128i sums = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(static_cast<char>(0x80))), _mm_setzero_si128());
  return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128;
}

// The codes of x to byte `at` of each of 16 words. Other bytes are not touched: other threads may be writing them.
static inline void q8_scatter_codes(std::byte* words, uint32_t at, V x) {
  const __m512i codes = _mm512_sll_epi32(_mm512_cvtps_epi32(x.v), _mm_cvtsi32_si128(static_cast<int>(8 * at)));
  _mm512_mask_storeu_epi8(words, 0x1111111111111111ull << at, codes);
}

// x as n and a fraction; the exponent below takes n's floor itself.
static inline void q8_split(V x, V& n, V& f) {
  n = x;
  f = {_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF)};
}
static inline V q8_scale_by(V x, V exponent) {
  return {_mm512_scalef_ps(x.v, exponent.v)};
}

// Four groups of 16 weights, rounded to bytes; group g's four of quad l go to [16 * l + 4 * g].
static inline void q8_weights64(uint8_t* out, V a, V b, V c, V d) {
  const __m512i ab = _mm512_packs_epi32(_mm512_cvtps_epi32(a.v), _mm512_cvtps_epi32(b.v)),
                cd = _mm512_packs_epi32(_mm512_cvtps_epi32(c.v), _mm512_cvtps_epi32(d.v));
  _mm512_store_si512(out, _mm512_packus_epi16(ab, cd));
}

struct Q8Add {
  static __m512 of(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
};
struct Q8Max {
  static __m512 of(__m512 a, __m512 b) { return _mm512_max_ps(a, b); }
};
template <typename F>
static inline __m512 q8_fold_two(__m512 a, __m512 b) {  // 8 lanes of each
  return F::of(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}
template <typename F>
static inline __m512 q8_fold_four(__m512 a, __m512 b, __m512 c, __m512 d) {  // 4 lanes of each
  const __m512 x = q8_fold_two<F>(a, b), y = q8_fold_two<F>(c, d);
  return F::of(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
}
// The lanes of up to 8 vectors folded as kernel_set.h prescribes, all at once.
template <typename F, uint32_t R>
static inline void q8_fold(const V (&v)[R], float* out) {
  auto row = [&](uint32_t r) { return v[r < R ? r : 0].v; };
  const __m512 x = q8_fold_four<F>(row(0), row(1), row(2), row(3)),
               y = R > 4 ? q8_fold_four<F>(row(4), row(5), row(6), row(7)) : x;
  const __m512 two = F::of(_mm512_shuffle_ps(x, y, 0x44), _mm512_shuffle_ps(x, y, 0xee)),
               one = F::of(two, _mm512_permute_ps(two, 0xb1));
  _mm512_store_ps(out,
                  _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0), one));
}
template <uint32_t R>
static inline void q8_fold_sum(const V (&v)[R], float* out) {
  q8_fold<Q8Add, R>(v, out);
}
template <uint32_t R>
static inline void q8_fold_max(const V (&v)[R], float* out) {
  q8_fold<Q8Max, R>(v, out);
}
