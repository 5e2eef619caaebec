// Products with float matrices (F32, F16, BF16), written once over V. Included as vector_kernels.inc.h is. One chain of
// fma per output, in order of k.

enum class FloatKind { kF16, kBf16, kF32 };

template <FloatKind Kind>
static inline V load_weights(const std::byte* p) {
  if constexpr (Kind == FloatKind::kF32) return V::load(reinterpret_cast<const float*>(p));
  return V::template load_kv16 < Kind == FloatKind::kBf16 > (p);
}

template <FloatKind Kind, uint32_t R, uint32_t S>
static inline void float_tile(const MatmulJob& job, uint32_t row, uint32_t strip) {
  constexpr size_t kStep = Kind == FloatKind::kF32 ? 64 : 32;
  const size_t bytes = size_t{job.w.k} * kStep;
  const std::byte* w = job.w.data + (size_t{job.first_strip} + strip) * bytes;
  const float* x = job.x->f32 + row * job.x->f32_stride;
  V acc[R][S];
  for (uint32_t r = 0; r < R; ++r)
    for (uint32_t s = 0; s < S; ++s) acc[r][s] = V::set(0.0f);
  for (uint32_t i = 0; i < job.w.k; ++i) {
    V values[S];
    for (uint32_t s = 0; s < S; ++s) values[s] = load_weights<Kind>(w + s * bytes + i * kStep);
    for (uint32_t r = 0; r < R; ++r) {
      const V in = V::set(x[r * job.x->f32_stride + i]);
      for (uint32_t s = 0; s < S; ++s) acc[r][s] = V::fma(in, values[s], acc[r][s]);
    }
  }
  for (uint32_t r = 0; r < R; ++r) {
    for (uint32_t s = 0; s < S; ++s) {
      float* out = job.out + (row + r) * job.out_stride + (strip + s) * kStrip;
      V::store(out, job.add ? V::add(V::load(out), acc[r][s]) : acc[r][s]);
    }
  }
}

template <FloatKind Kind, uint32_t R>
static inline void float_rows(const MatmulJob& job, uint32_t row) {
  uint32_t strip = 0;
  for (; strip + 4 <= job.n_strips; strip += 4) float_tile<Kind, R, 4>(job, row, strip);
  for (; strip < job.n_strips; ++strip) float_tile<Kind, R, 1>(job, row, strip);
}

template <FloatKind Kind>
static void float_matmul(const MatmulJob& job) {
  uint32_t row = 0;
  for (; row + 4 <= job.x->rows; row += 4) float_rows<Kind, 4>(job, row);
  for (; row < job.x->rows; ++row) float_rows<Kind, 1>(job, row);
}
