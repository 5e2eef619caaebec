// 16 floats in one register. Included inside the anonymous namespace of a file compiled with AVX-512.
struct V {
  __m512 v;
  using Mask = __mmask16;
  static V load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static void store(float* p, V x) { _mm512_storeu_ps(p, x.v); }
  static __mmask16 lanes(uint32_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffffu : (1u << n) - 1); }
  static V load_part(const float* p, uint32_t n) { return {_mm512_maskz_loadu_ps(lanes(n), p)}; }
  static void store_part(float* p, uint32_t n, V x) { _mm512_mask_storeu_ps(p, lanes(n), x.v); }
  static V set(float f) { return {_mm512_set1_ps(f)}; }
  static V add(V a, V b) { return {_mm512_add_ps(a.v, b.v)}; }
  static V sub(V a, V b) { return {_mm512_sub_ps(a.v, b.v)}; }
  static V mul(V a, V b) { return {_mm512_mul_ps(a.v, b.v)}; }
  static V div(V a, V b) { return {_mm512_div_ps(a.v, b.v)}; }
  static V reciprocal_guess(V a) {
    return {_mm512_castsi512_ps(_mm512_sub_epi32(_mm512_set1_epi32(0x7ef311c7), _mm512_castps_si512(a.v)))};
  }
  static V fma(V a, V b, V c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
  static V max(V a, V b) { return {_mm512_max_ps(a.v, b.v)}; }
  static V min(V a, V b) { return {_mm512_min_ps(a.v, b.v)}; }
  static V abs(V a) { return {_mm512_abs_ps(a.v)}; }
  static V round(V a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
  static V power_of_two(V n) {
    return {
        _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
  }
  static Mask less(V a, V b) {
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_NGE_UQ);
  }  // true for NaN, as the reference has it
  static V zero_where(Mask m, V a) { return {_mm512_maskz_mov_ps(static_cast<__mmask16>(~m), a.v)}; }
  // Lanes i with lo <= i < hi keep x, others take fill.
  static V keep_lanes(V x, int32_t lo, int32_t hi, V fill) {
    const uint32_t low = lo <= 0    ? 0u
                         : lo >= 16 ? 16u
                                    : static_cast<uint32_t>(lo),
                   high = hi <= 0    ? 0u
                          : hi >= 16 ? 16u
                                     : static_cast<uint32_t>(hi);
    const __mmask16 keep = static_cast<__mmask16>(lanes(high) & ~lanes(low));
    return {_mm512_mask_mov_ps(fill.v, keep, x.v)};
  }
  static float first(V a) { return _mm512_cvtss_f32(a.v); }
  static float fold(V a) {
    const __m256 s = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    const __m128 u = _mm_add_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_add_ss(u, _mm_shuffle_ps(u, u, 1)));
  }
  static float fold_max(V a) { return _mm512_reduce_max_ps(a.v); }
  static float scalar_sqrt(float f) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(f))); }
  static float scalar_fma(float a, float b, float c) {
    return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
  }
  // Nearest-even int8 codes of 32 scaled values, and the sums of their halves. Through memory on purpose: picked out of
  // registers, the words and sums would all queue for the one shuffle port.
  static void to_codes(V a, V b, uint32_t (&codes)[8], int32_t& low, int32_t& high) {
    const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v))),
                                                  _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(b.v)), 1);
    alignas(32) uint64_t sums[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(codes), bytes);
    _mm256_store_si256(
        reinterpret_cast<__m256i*>(sums),
        _mm256_sad_epu8(_mm256_xor_si256(bytes, _mm256_set1_epi8(static_cast<char>(0x80))), _mm256_setzero_si256()));
    asm("" : "+m"(codes), "+m"(sums));
    low = static_cast<int32_t>(sums[0] + sums[1]) - 16 * 128;
    high = static_cast<int32_t>(sums[2] + sums[3]) - 16 * 128;
  }
  template <bool Bf16>
  static V load_kv16(const std::byte* p) {
    const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if constexpr (Bf16) return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16))};
    return {_mm512_cvtph_ps(raw)};
  }
  // 16 pairs: the first of each to `even`, the second to `odd`.
  template <bool Bf16>
  static void load_kv_pairs(const std::byte* p, V& even, V& odd) {
    const __m512i raw = _mm512_loadu_si512(p);
    if constexpr (Bf16) {
      even = {_mm512_castsi512_ps(_mm512_slli_epi32(raw, 16))};
      odd = {_mm512_castsi512_ps(_mm512_and_si512(raw, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
    } else {
      even = {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(raw))};
      odd = {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(raw, 16)))};
    }
  }
  static void store_kv16(void* p, V x, bool bf16) {
    __m256i raw;
    if (bf16) {
      const __m512i bits = _mm512_castps_si512(x.v);
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
      raw = _mm512_cvtepi32_epi16(
          _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16));
    } else {
      const __m512 bounded = _mm512_max_ps(_mm512_min_ps(x.v, _mm512_set1_ps(65504.0f)), _mm512_set1_ps(-65504.0f));
      raw = _mm512_cvtps_ph(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    _mm256_storeu_si256(static_cast<__m256i*>(p), raw);
  }
};
