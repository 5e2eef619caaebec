// Everything but the matrix products, written once over a class V of 16 floats. Included by the one file of each
// instruction set, inside its anonymous namespace, after V is defined; it includes nothing that has inline functions of
// external linkage. Order of operations: kernel_set.h.

static inline V exp_v(V x) {
  const typename V::Mask tiny = V::less(x, V::set(-87.3f));
  x = V::min(x, V::set(88.0f));
  const V n = V::round(V::mul(x, V::set(1.44269504f)));
  V r = V::fma(n, V::set(-0.693359375f), x);
  r = V::fma(n, V::set(2.12194440e-4f), r);
  V p = V::set(1.9875691500e-4f);
  p = V::fma(p, r, V::set(1.3981999507e-3f));
  p = V::fma(p, r, V::set(8.3334519073e-3f));
  p = V::fma(p, r, V::set(4.1665795894e-2f));
  p = V::fma(p, r, V::set(1.6666665459e-1f));
  p = V::fma(p, r, V::set(5.0000001201e-1f));
  const V y = V::add(V::fma(p, V::mul(r, r), r), V::set(1.0f));
  return V::zero_where(tiny, V::mul(y, V::power_of_two(n)));
}

// 1 / x for 1 <= x < 2^122, by Newton's iteration: a division would hold up the one divider for 16 cycles.
static inline V reciprocal_v(V x) {
  V r = V::reciprocal_guess(x);
  const V one = V::set(1.0f), minus = V::sub(V::set(-0.0f), x);
  r = V::fma(r, V::fma(minus, r, one), r);
  r = V::fma(r, V::fma(minus, r, one), r);
  return V::fma(r, V::fma(minus, r, one), r);
}

static inline V tanh_v(V x) {
  const V e = exp_v(V::min(V::add(x, x), V::set(80.0f)));
  return V::sub(V::set(1.0f), V::mul(V::set(2.0f), reciprocal_v(V::add(e, V::set(1.0f)))));
}
static inline V silu_v(V x) {
  return V::mul(x, reciprocal_v(V::add(V::set(1.0f), exp_v(V::min(V::sub(V::set(-0.0f), x), V::set(80.0f))))));
}
static inline V gelu_v(V x) {
  const V inner = V::mul(x, V::fma(V::mul(x, x), V::set(0.044715f * 0.7978845608f), V::set(0.7978845608f)));
  return V::mul(V::mul(V::set(0.5f), x), V::add(V::set(1.0f), tanh_v(inner)));
}

// Calls f(offset, V::Part) over n floats: whole vectors, then one part of the rest.
template <typename F>
static inline void each_vector(uint32_t n, F f) {
  uint32_t i = 0;
  for (; i + 16 <= n; i += 16) f(i, 16u);
  if (i < n) f(i, n - i);
}

static float rms_scale(const float* x, uint32_t n, float epsilon) {
  V sum = V::set(0.0f);
  each_vector(n, [&](uint32_t i, uint32_t count) {
    const V v = V::load_part(x + i, count);
    sum = V::fma(v, v, sum);
  });
  return 1.0f / V::scalar_sqrt(V::fold(sum) / static_cast<float>(n) + epsilon);
}

static void scale_mul(float* out, const float* x, float scale, const float* weight, uint32_t n) {
  each_vector(n, [&](uint32_t i, uint32_t count) {
    V::store_part(out + i, count,
                  V::mul(V::mul(V::load_part(x + i, count), V::set(scale)), V::load_part(weight + i, count)));
  });
}

static void scale_mul_add(float* out, const float* x, float scale, const float* weight, uint32_t n) {
  each_vector(n, [&](uint32_t i, uint32_t count) {
    const V y = V::mul(V::mul(V::load_part(x + i, count), V::set(scale)), V::load_part(weight + i, count));
    V::store_part(out + i, count, V::add(V::load_part(out + i, count), y));
  });
}

static void scale_by(float* out, const float* x, float scale, uint32_t n) {
  each_vector(n, [&](uint32_t i, uint32_t count) {
    V::store_part(out + i, count, V::mul(V::load_part(x + i, count), V::set(scale)));
  });
}

static void add(float* out, const float* x, uint32_t n) {
  each_vector(n, [&](uint32_t i, uint32_t count) {
    V::store_part(out + i, count, V::add(V::load_part(out + i, count), V::load_part(x + i, count)));
  });
}

static void rotate(float* head, const float* cos, const float* sin, uint32_t half, float scale) {
  each_vector(half, [&](uint32_t i, uint32_t count) {
    const V a = V::load_part(head + i, count), b = V::load_part(head + half + i, count);
    const V c = V::load_part(cos + i, count), s = V::load_part(sin + i, count);
    V::store_part(head + i, count, V::mul(V::fma(a, c, V::sub(V::set(-0.0f), V::mul(b, s))), V::set(scale)));
    V::store_part(head + half + i, count, V::mul(V::fma(a, s, V::mul(b, c)), V::set(scale)));
  });
}

static void silu_gate(float* gate, const float* up, uint32_t n) {
  each_vector(n, [&](uint32_t i, uint32_t count) {
    V::store_part(gate + i, count, V::mul(silu_v(V::load_part(gate + i, count)), V::load_part(up + i, count)));
  });
}

static void gelu_gate(float* gate, const float* up, uint32_t n) {
  each_vector(n, [&](uint32_t i, uint32_t count) {
    V::store_part(gate + i, count, V::mul(gelu_v(V::load_part(gate + i, count)), V::load_part(up + i, count)));
  });
}

static void soft_cap(float* x, float cap, uint32_t n) {
  each_vector(n, [&](uint32_t i, uint32_t count) {
    V::store_part(x + i, count, V::mul(V::set(cap), tanh_v(V::div(V::load_part(x + i, count), V::set(cap)))));
  });
}

// Where the parts of one block of one row go; plain pointers, so that storing bytes does not make the compiler reload
// them.
struct BlockTarget {
  int8_t* codes;
  float *scale, *sum;
  int32_t *start4, *neg128, *neg32;
  void next(uint32_t R) { codes += size_t{R} * kBlock, scale += R, sum += R, start4 += R, neg128 += R, neg32 += 2 * R; }
};

// Writes codes, scale and sums of one block of one row whose two vectors of values are a and b. R: rows of the tile.
static inline void write_block(const BlockTarget& to, uint32_t R, V a, V b, V inverse, float scale) {
  alignas(32) uint32_t codes[8];
  int32_t low, high;
  V::to_codes(V::mul(a, inverse), V::mul(b, inverse), codes, low, high);
  for (uint32_t g = 0; g < 8; ++g) __builtin_memcpy(to.codes + size_t{g} * R * 4, codes + g, 4);
  *to.scale = scale;
  *to.sum = scale * static_cast<float>(low + high);
  *to.start4 = 65535 * 8 * (low + high);
  *to.neg128 = -128 * (low + high);
  to.neg32[0] = -32 * low;
  to.neg32[R] = -32 * high;
}

// One scale group of B blocks of a row.
template <bool Scaled, bool Weighted, bool Floats, uint32_t B>
static inline void quantize_group(const float* x, const float* weight, float* plain, V row_scale, bool codes,
                                  uint32_t R, BlockTarget& to) {
  V y[2 * B], top = V::set(0.0f);
  for (uint32_t i = 0; i < 2 * B; ++i) {
    y[i] = V::load(x + 16 * i);
    if constexpr (Scaled) y[i] = V::mul(y[i], row_scale);
    if constexpr (Weighted) y[i] = V::mul(y[i], V::load(weight + 16 * i));
    if constexpr (Floats) V::store(plain + 16 * i, y[i]);
    top = V::max(top, V::abs(y[i]));
  }
  if (!codes) return;
  const float amax = V::fold_max(top);
  const bool usable = amax > 1e-30f;
  const V inverse = V::set(usable ? 127.0f / amax : 0.0f);
  const float scale = usable ? amax / 127.0f : 0.0f;
  for (uint32_t b = 0; b < B; ++b, to.next(R)) write_block(to, R, y[2 * b], y[2 * b + 1], inverse, scale);
}

template <bool Scaled, bool Weighted, bool Floats>
static void quantize_row(const QuantizeJob& job, uint32_t row, uint32_t r) {
  const Activations& out = *job.out;
  const uint32_t R = out.rows_per_tile, last = job.first_block + job.n_blocks;
  const size_t start = size_t{job.tile} * out.blocks() + job.first_block;
  BlockTarget to{out.codes + (start * 8 * R + r) * 4, out.scale + start * R + r,  out.sum + start * R + r,
                 out.start4 + start * R + r,          out.neg128 + start * R + r, out.neg32 + start * 2 * R + r};
  const float* x = job.x + row * job.x_stride + (job.first_block - job.x_first_block) * kBlock;
  const float* weight = job.weight + (Weighted ? job.first_block * kBlock : 0);
  float* plain = out.f32 + row * out.f32_stride + job.first_block * kBlock;
  const V scale = V::set(Scaled ? job.row_scale[row] : 1.0f);
  for (uint32_t b = job.first_block; b < last;) {
    const uint32_t n = out.group < last - b ? out.group : last - b, step = n * kBlock;
    using Fn = void (*)(const float*, const float*, float*, V, bool, uint32_t, BlockTarget&);
    static constexpr Fn kGroups[kScaleBlocks] = {quantize_group<Scaled, Weighted, Floats, 1>,
                                                 quantize_group<Scaled, Weighted, Floats, 2>};
    kGroups[n - 1](x, weight, plain, scale, out.want_codes, R, to);
    b += n, x += step, weight += Weighted ? step : 0, plain += step;
  }
}

// Rows beyond the batch fill their tile with zeros.
static void clear_row(const QuantizeJob& job, uint32_t r) {
  const Activations& out = *job.out;
  const uint32_t R = out.rows_per_tile;
  for (size_t b = size_t{job.tile} * out.blocks() + job.first_block, n = 0; n < job.n_blocks; ++b, ++n) {
    for (uint32_t g = 0; g < 8; ++g) __builtin_memset(out.codes + ((b * 8 + g) * R + r) * 4, 0, 4);
    out.scale[b * R + r] = out.sum[b * R + r] = 0.0f;
    out.start4[b * R + r] = out.neg128[b * R + r] = out.neg32[2 * b * R + r] = out.neg32[(2 * b + 1) * R + r] = 0;
  }
}

static void quantize(const QuantizeJob& job) {
  using Fn = void (*)(const QuantizeJob&, uint32_t, uint32_t);
  static constexpr Fn kKinds[8] = {quantize_row<false, false, false>, quantize_row<true, false, false>,
                                   quantize_row<false, true, false>,  quantize_row<true, true, false>,
                                   quantize_row<false, false, true>,  quantize_row<true, false, true>,
                                   quantize_row<false, true, true>,   quantize_row<true, true, true>};
  const Fn kind = kKinds[(job.row_scale ? 1 : 0) + (job.weight ? 2 : 0) + (job.out->want_f32 ? 4 : 0)];
  for (uint32_t r = 0; r < job.out->rows_per_tile; ++r) {
    const uint32_t row = job.tile * job.out->rows_per_tile + r;
    if (row < job.out->rows)
      kind(job, row, r);
    else if (job.out->want_codes)
      clear_row(job, r);
  }
}

static void store_kv16(const StoreKvJob& job) {
  const bool bf16 = job.type == KvType::kBf16;
  std::byte* keys = job.head + size_t{job.slot / 16} * job.head_dim * 32 + 4 * (job.slot % 16);
  std::byte* values = job.head + (size_t{job.block_tokens} + job.slot) * job.head_dim * 2;
  for (uint32_t d = 0; d < job.head_dim; d += 16) {
    alignas(32) uint16_t k[16];
    V::store_kv16(k, V::load(job.k + d), bf16);
    V::store_kv16(values + 2 * d, V::load(job.v + d), bf16);
    for (uint32_t i = 0; i < 16; i += 2) __builtin_memcpy(keys + 32 * (d + i), k + i, 4);
  }
}

// ---- attention ----

static inline const std::byte* kv_block(const AttentionJob& job, uint32_t key) {
  return job.kv + size_t{job.block_table[key / job.block_tokens]} * job.block_stride;
}
static inline const std::byte* key_group(const AttentionJob& job, uint32_t key) {  // key: multiple of 16
  return kv_block(job, key) + size_t{key % job.block_tokens / 16} * job.head_dim * 32;
}
static inline const std::byte* value_group(const AttentionJob& job, uint32_t key) {
  return kv_block(job, key) + (size_t{job.block_tokens} + key % job.block_tokens) * job.head_dim * 2;
}

// scores[r][16 * (g - first) ...] for G groups of 16 keys from group `g`.
template <uint32_t R, uint32_t G, bool Bf16>
static inline void score_groups(const AttentionJob& job, uint32_t key, float (*scores)[kKeyBlock]) {
  const std::byte* k[G];
  for (uint32_t g = 0; g < G; ++g) k[g] = key_group(job, key + 16 * g);
  const float* q[R];
  for (uint32_t r = 0; r < R; ++r) q[r] = job.q[r];
  V s[R][G];
  for (uint32_t r = 0; r < R; ++r)
    for (uint32_t g = 0; g < G; ++g) s[r][g] = V::set(0.0f);
  for (uint32_t d = 0; d < job.head_dim; d += 2) {
    V even[G], odd[G];
    for (uint32_t g = 0; g < G; ++g) V::template load_kv_pairs<Bf16>(k[g] + 32 * size_t{d}, even[g], odd[g]);
    for (uint32_t r = 0; r < R; ++r) {
      const V x = V::set(q[r][d]), y = V::set(q[r][d + 1]);
      for (uint32_t g = 0; g < G; ++g) s[r][g] = V::fma(y, odd[g], V::fma(x, even[g], s[r][g]));
    }
  }
  for (uint32_t r = 0; r < R; ++r)
    for (uint32_t g = 0; g < G; ++g) V::store(scores[r] + key % kKeyBlock + 16 * g, s[r][g]);
}

template <uint32_t R, uint32_t C, bool Bf16>
static inline void weigh_values(const AttentionJob& job, uint32_t begin, uint32_t end, uint32_t d,
                                const float (*p)[kKeyBlock], float* acc) {
  V sum[R][C];
  for (uint32_t r = 0; r < R; ++r)
    for (uint32_t c = 0; c < C; ++c) sum[r][c] = V::set(0.0f);
  for (uint32_t key = begin; key < end;) {
    const uint32_t stop = (key / 16 + 1) * 16 < end ? (key / 16 + 1) * 16 : end;
    const std::byte* v = value_group(job, key) + 2 * size_t{d};
    for (; key < stop; ++key, v += 2 * size_t{job.head_dim}) {
      V values[C];
      for (uint32_t c = 0; c < C; ++c) values[c] = V::template load_kv16<Bf16>(v + 32 * c);
      for (uint32_t r = 0; r < R; ++r) {
        const V x = V::set(p[r][key % kKeyBlock]);
        for (uint32_t c = 0; c < C; ++c) sum[r][c] = V::fma(x, values[c], sum[r][c]);
      }
    }
  }
  for (uint32_t r = 0; r < R; ++r)
    for (uint32_t c = 0; c < C; ++c) V::store(acc + size_t{r} * job.head_dim + d + 16 * c, sum[r][c]);
}

// Turns the scores of groups [first, last) into weights; returns max and sum of the row.
static inline void soften(const AttentionJob& job, uint32_t r, uint32_t block_start, uint32_t first, uint32_t last,
                          float* s, AttentionPartial& out) {
  V top = V::set(-__builtin_inff());
  for (uint32_t g = first; g < last; ++g) {
    V x = V::load(s + 16 * g);
    if (job.soft_cap > 0.0f) x = V::mul(V::set(job.soft_cap), tanh_v(V::div(x, V::set(job.soft_cap))));
    const int32_t start = static_cast<int32_t>(block_start + 16 * g);
    x = V::keep_lanes(x, static_cast<int32_t>(job.key_begin[r]) - start, static_cast<int32_t>(job.key_end[r]) - start,
                      V::set(-__builtin_inff()));
    V::store(s + 16 * g, x);
    top = V::max(top, x);
  }
  const float max = V::fold_max(top);
  const float base = max > -__builtin_inff() ? max : 0.0f;
  V sum = V::set(0.0f);
  for (uint32_t g = first; g < last; ++g) {
    const V p = exp_v(V::sub(V::load(s + 16 * g), V::set(base)));
    V::store(s + 16 * g, p);
    sum = V::add(sum, p);
  }
  out.max[r] = max;
  out.sum[r] = V::fold(sum);
}

template <uint32_t R, bool Bf16>
static void attend_rows(const AttentionJob& job, uint32_t key_block, AttentionPartial& out) {
  constexpr uint32_t kGroups = R == 1 ? 8 : R <= 4 ? 4 : 2;
  constexpr uint32_t kColumns = R <= 4 ? 4 : 2;
  const uint32_t start = key_block * kKeyBlock;
  uint32_t begin = start + kKeyBlock, end = start;
  for (uint32_t r = 0; r < R; ++r) {
    const uint32_t row_begin = job.key_begin[r] > start ? job.key_begin[r] : start;
    const uint32_t row_end = job.key_end[r] < start + kKeyBlock ? job.key_end[r] : start + kKeyBlock;
    if (row_begin >= row_end) continue;
    begin = row_begin < begin ? row_begin : begin;
    end = row_end > end ? row_end : end;
  }
  alignas(64) float s[R][kKeyBlock];
  const uint32_t first = begin < end ? (begin - start) / 16 : 0, last = begin < end ? (end - start + 15) / 16 : 0;
  uint32_t g = first;
  for (; g + kGroups <= last; g += kGroups) score_groups<R, kGroups, Bf16>(job, start + 16 * g, s);
  for (; g < last; ++g) score_groups<R, 1, Bf16>(job, start + 16 * g, s);
  for (uint32_t r = 0; r < R; ++r) soften(job, r, start, first, last, s[r], out);
  uint32_t d = 0;
  for (; d + 16 * kColumns <= job.head_dim; d += 16 * kColumns)
    weigh_values<R, kColumns, Bf16>(job, begin, end, d, s, out.acc);
  for (; d < job.head_dim; d += 16) weigh_values<R, 1, Bf16>(job, begin, end, d, s, out.acc);
}

static void attend_block16(const AttentionJob& job, uint32_t key_block, AttentionPartial& out) {
  using Fn = void (*)(const AttentionJob&, uint32_t, AttentionPartial&);
  static constexpr Fn kHalf[kAttentionRows] = {attend_rows<1, false>, attend_rows<2, false>, attend_rows<3, false>,
                                               attend_rows<4, false>, attend_rows<5, false>, attend_rows<6, false>,
                                               attend_rows<7, false>, attend_rows<8, false>};
  static constexpr Fn kBrain[kAttentionRows] = {attend_rows<1, true>, attend_rows<2, true>, attend_rows<3, true>,
                                                attend_rows<4, true>, attend_rows<5, true>, attend_rows<6, true>,
                                                attend_rows<7, true>, attend_rows<8, true>};
  (job.type == KvType::kBf16 ? kBrain : kHalf)[job.n_rows - 1](job, key_block, out);
}

// What both sides of a merge count for: rows of the first in [0, 8), of the second after them. A row that has seen
// nothing on either side counts nothing.
struct MergeWeights {
  alignas(64) float of[16];
};

// The weights, and `into`'s maxima and sums after the merge.
static inline void merge_weights(AttentionPartial& into, const AttentionPartial& from, uint32_t n_rows,
                                 MergeWeights& out) {
  static_assert(kAttentionRows == 8, "the exponentials of both sides fill one vector");
  for (uint32_t r = 0; r < kAttentionRows; ++r) {
    out.of[r] = out.of[8 + r] = 0.0f;
    if (r >= n_rows) continue;
    const float top = into.max[r] > from.max[r] ? into.max[r] : from.max[r];
    const bool any = top > -__builtin_inff();
    out.of[r] = any ? into.max[r] - top : 0.0f;
    out.of[8 + r] = any ? from.max[r] - top : 0.0f;
    into.max[r] = top;
  }
  V::store(out.of, exp_v(V::load(out.of)));
  for (uint32_t r = 0; r < n_rows; ++r)
    into.sum[r] = V::scalar_fma(into.sum[r], out.of[r], from.sum[r] * out.of[8 + r]);
}

static inline V merged(V into, V from, const MergeWeights& weights, uint32_t row) {
  return V::fma(into, V::set(weights.of[row]), V::mul(from, V::set(weights.of[8 + row])));
}

static void merge_partial(AttentionPartial& into, const AttentionPartial& from, uint32_t n_rows, uint32_t head_dim) {
  MergeWeights weights;
  merge_weights(into, from, n_rows, weights);
  for (uint32_t r = 0; r < n_rows; ++r) {
    float* acc = into.acc + size_t{r} * head_dim;
    const float* more = from.acc + size_t{r} * head_dim;
    for (uint32_t d = 0; d < head_dim; d += 16)
      V::store(acc + d, merged(V::load(acc + d), V::load(more + d), weights, r));
  }
}
