// 16 floats in two registers. Included inside the anonymous namespace of a file compiled with AVX2, FMA and F16C.
struct V {
  __m256 a, b;
  struct Mask {
    __m256 a, b;
  };
  static V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, V x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
  static V load_part(const float* p, uint32_t n) {
    if (n >= 16) return load(p);
    alignas(32) float t[16] = {};
    __builtin_memcpy(t, p, n * 4);
    return load(t);
  }
  static void store_part(float* p, uint32_t n, V x) {
    if (n >= 16) return store(p, x);
    alignas(32) float t[16];
    store(t, x);
    __builtin_memcpy(p, t, n * 4);
  }
  static V set(float f) { return {_mm256_set1_ps(f), _mm256_set1_ps(f)}; }
  static V add(V x, V y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static V sub(V x, V y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static V mul(V x, V y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static V div(V x, V y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static __m256 guess_half(__m256 x) {
    return _mm256_castsi256_ps(_mm256_sub_epi32(_mm256_set1_epi32(0x7ef311c7), _mm256_castps_si256(x)));
  }
  static V reciprocal_guess(V a) { return {guess_half(a.a), guess_half(a.b)}; }
  static V fma(V x, V y, V z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
  static V max(V x, V y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static V min(V x, V y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static V abs(V x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
  }
  static V round(V x) {
    return {_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  static __m256 power_half(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
  }
  static V power_of_two(V n) { return {power_half(n.a), power_half(n.b)}; }
  static Mask less(V x, V y) { return {_mm256_cmp_ps(x.a, y.a, _CMP_NGE_UQ), _mm256_cmp_ps(x.b, y.b, _CMP_NGE_UQ)}; }
  static V zero_where(Mask m, V x) { return {_mm256_andnot_ps(m.a, x.a), _mm256_andnot_ps(m.b, x.b)}; }
  static V keep_lanes(V x, int32_t lo, int32_t hi, V fill) {
    const __m256i low = _mm256_set1_epi32(lo - 1), high = _mm256_set1_epi32(hi);
    const __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), j = _mm256_add_epi32(i, _mm256_set1_epi32(8));
    const __m256 ka = _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(i, low), _mm256_cmpgt_epi32(high, i)));
    const __m256 kb = _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(j, low), _mm256_cmpgt_epi32(high, j)));
    return {_mm256_blendv_ps(fill.a, x.a, ka), _mm256_blendv_ps(fill.b, x.b, kb)};
  }
  static float first(V x) { return _mm256_cvtss_f32(x.a); }
  static float fold(V x) {
    const __m256 s = _mm256_add_ps(x.a, x.b);
    const __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    const __m128 u = _mm_add_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_add_ss(u, _mm_shuffle_ps(u, u, 1)));
  }
  static float fold_max(V x) {
    const __m256 s = _mm256_max_ps(x.a, x.b);
    const __m128 t = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    const __m128 u = _mm_max_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_max_ss(u, _mm_shuffle_ps(u, u, 1)));
  }
  static float scalar_sqrt(float f) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(f))); }
  static float scalar_fma(float a, float b, float c) {
    return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
  }
  static __m128i code_bytes(V scaled) {
    const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(scaled.a), _mm256_cvtps_epi32(scaled.b));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
    return _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
  }
  // Nearest-even int8 codes of 32 scaled values, and the sums of their halves. Through memory on purpose: picked out of
  // registers, the words and sums would all queue for the one shuffle port.
  static void to_codes(V a, V b, uint32_t (&codes)[8], int32_t& low, int32_t& high) {
    const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(code_bytes(a)), code_bytes(b), 1);
    alignas(32) uint64_t sums[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(codes), bytes);
    _mm256_store_si256(
        reinterpret_cast<__m256i*>(sums),
        _mm256_sad_epu8(_mm256_xor_si256(bytes, _mm256_set1_epi8(static_cast<char>(0x80))), _mm256_setzero_si256()));
    asm("" : "+m"(codes), "+m"(sums));
    low = static_cast<int32_t>(sums[0] + sums[1]) - 16 * 128;
    high = static_cast<int32_t>(sums[2] + sums[3]) - 16 * 128;
  }
  static __m256 half8(__m128i raw) { return _mm256_cvtph_ps(raw); }
  static __m256 brain8(__m128i raw) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16)); }
  template <bool Bf16>
  static V load_kv16(const std::byte* p) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)),
                  high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p) + 1);
    if constexpr (Bf16) return {brain8(low), brain8(high)};
    return {half8(low), half8(high)};
  }
  // 8 pairs: the first or second of each.
  template <bool Bf16>
  static __m256 first_of_pairs(__m256i raw) {
    if constexpr (Bf16) return _mm256_castsi256_ps(_mm256_slli_epi32(raw, 16));
    const __m256i low = _mm256_and_si256(raw, _mm256_set1_epi32(0xffff));
    return half8(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
  }
  template <bool Bf16>
  static __m256 second_of_pairs(__m256i raw) {
    if constexpr (Bf16)
      return _mm256_castsi256_ps(_mm256_and_si256(raw, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
    const __m256i high = _mm256_srli_epi32(raw, 16);
    return half8(_mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1)));
  }
  template <bool Bf16>
  static void load_kv_pairs(const std::byte* p, V& even, V& odd) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
                  b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + 1);
    even = {first_of_pairs<Bf16>(a), first_of_pairs<Bf16>(b)};
    odd = {second_of_pairs<Bf16>(a), second_of_pairs<Bf16>(b)};
  }
  static __m256i brain_bits(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
  }
  static __m128i half_bits(__m256 x) {
    const __m256 bounded = _mm256_max_ps(_mm256_min_ps(x, _mm256_set1_ps(65504.0f)), _mm256_set1_ps(-65504.0f));
    return _mm256_cvtps_ph(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static void store_kv16(void* p, V x, bool bf16) {
    auto* out = static_cast<__m128i*>(p);
    if (bf16) {
      const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(brain_bits(x.a), brain_bits(x.b)), 0xd8);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), words);
      return;
    }
    _mm_storeu_si128(out, half_bits(x.a));
    _mm_storeu_si128(out + 1, half_bits(x.b));
  }
};
