// Attention over the 8-bit cache, written once over V (16 floats) and D (16 exact sums of four products each). Included
// by the one file of each instruction set inside its anonymous namespace, after its q8_vector.inc.h and
// vector_kernels.inc.h. The arithmetic is stated in q8_cache.h.

static inline const std::byte* q8_group(const AttentionJob& job, uint32_t key) {  // key: multiple of 16
  const uint32_t block = job.block_table[key >> __builtin_ctz(job.block_tokens)];
  return job.kv + size_t{block} * job.block_stride +
         size_t{(key & (job.block_tokens - 1)) / 16} * q8_group_bytes(job.head_dim);
}

constexpr uint32_t kQ8WidestHead = 512;

static inline V q8_turn16(V x) {
  x = q8_butterfly<1>(x);
  x = q8_butterfly<2>(x);
  x = q8_butterfly<4>(x);
  return q8_butterfly<8>(x);
}

// A head of 16 * N dimensions that are one run, in registers.
template <uint32_t N>
static inline void q8_turn_whole(const float* from, float* to) {
  V x[N];
#pragma GCC unroll 16
  for (uint32_t i = 0; i < N; ++i) x[i] = q8_turn16(V::load(from + 16 * i));
#pragma GCC unroll 4
  for (uint32_t h = 1; h < N; h *= 2) {
#pragma GCC unroll 16
    for (uint32_t i = 0; i < N; ++i) {
      if (i & h) continue;
      const V a = x[i], b = x[i + h];
      x[i] = V::add(a, b);
      x[i + h] = V::sub(a, b);
    }
  }
#pragma GCC unroll 16
  for (uint32_t i = 0; i < N; ++i) V::store(to + 16 * i, x[i]);
}

static void q8_turn(const float* from, uint32_t head_dim, float* to) {
  if (head_dim == 64) return q8_turn_whole<4>(from, to);
  if (head_dim == 128) return q8_turn_whole<8>(from, to);
  if (head_dim == 256) return q8_turn_whole<16>(from, to);
  for (uint32_t d = 0; d < head_dim; d += 16) V::store(to + d, q8_turn16(V::load(from + d)));
  const uint32_t turned = q8_turned(head_dim);
  for (uint32_t h = 16; h < turned; h *= 2) {
    for (uint32_t start = 0; start < head_dim; start += 2 * h) {
      for (uint32_t d = start; d < start + h; d += 16) {
        const V a = V::load(to + d), b = V::load(to + d + h);
        V::store(to + d, V::add(a, b));
        V::store(to + d + h, V::sub(a, b));
      }
    }
  }
}

struct Q8Scale {
  float inverse, scale;
};
static inline Q8Scale q8_scale_of(float a) {
  if (!(a > kQ8Smallest)) return {0.0f, 0.0f};
  return {127.0f / a, a / 127.0f};
}
static inline Q8Scale q8_scale(const float* x, uint32_t n) {
  V most = V::set(0.0f);
  for (uint32_t d = 0; d < n; d += 16) most = V::max(most, V::abs(V::load(x + d)));
  return q8_scale_of(V::fold_max(most));
}

static void q8_store(const StoreKvJob& job) {
  std::byte* group = job.head + size_t{job.slot / 16} * q8_group_bytes(job.head_dim);
  const uint32_t token = job.slot % 16;
  alignas(64) float turned[kQ8WidestHead], turned_v[kQ8WidestHead];
  q8_turn(job.k, job.head_dim, turned);
  q8_turn(job.v, job.head_dim, turned_v);
  const Q8Scale k = q8_scale(turned, job.head_dim), v = q8_scale(turned_v, job.head_dim);
  const float v_scale = v.scale / static_cast<float>(q8_turned(job.head_dim));
  std::byte* keys = group + 4 * token;
  std::byte* values = group + q8_values_at(job.head_dim) + size_t{token / 4} * 4 * job.head_dim;
  for (uint32_t d = 0; d < job.head_dim; d += 16) {
    alignas(16) int8_t codes[16];
    q8_codes16(codes, V::mul(V::load(turned + d), V::set(k.inverse)));
    for (uint32_t i = 0; i < 4; ++i) {
      uint32_t four;
      __builtin_memcpy(&four, codes + 4 * i, 4);
      four ^= 0x80808080u;
      __builtin_memcpy(keys + 16 * (d + 4 * i), &four, 4);
    }
    q8_scatter_codes(values + 4 * size_t{d}, token % 4, V::mul(V::load(turned_v + d), V::set(v.inverse)));
  }
  __builtin_memcpy(group + q8_key_scales_at(job.head_dim) + 4 * token, &k.scale, 4);
  __builtin_memcpy(group + q8_value_scales_at(job.head_dim) + 4 * token, &v_scale, 4);
}

// Step by step for all rows, because each row's steps wait for one another.
template <uint32_t R>
static void q8_prepare_rows(const AttentionJob& job) {
  alignas(64) float turned[R][kQ8WidestHead], most[16];
  V lanes[R];
  for (uint32_t r = 0; r < R; ++r) {
    q8_turn(job.q[r], job.head_dim, turned[r]);
    lanes[r] = V::set(0.0f);
    for (uint32_t d = 0; d < job.head_dim; d += 16) lanes[r] = V::max(lanes[r], V::abs(V::load(turned[r] + d)));
  }
  q8_fold_max<R>(lanes, most);
  for (uint32_t r = 0; r < R; ++r) {
    const Q8Scale q = q8_scale_of(most[r]);
    q8_query_scales(job.prepared, job.head_dim)[r] = q.scale / static_cast<float>(q8_turned(job.head_dim));
    most[r] = q.inverse;
  }
  for (uint32_t r = 0; r < R; ++r) {
    int8_t* codes = q8_query_codes(job.prepared, job.head_dim, r);
    for (uint32_t d = 0; d < job.head_dim; d += 16)
      q8_codes16(codes + d, V::mul(V::load(turned[r] + d), V::set(most[r])));
  }
  for (uint32_t r = 0; r < R; ++r) {
    const int8_t* codes = q8_query_codes(job.prepared, job.head_dim, r);
    int32_t sum = 0;
    for (uint32_t d = 0; d < job.head_dim; d += 16) sum += q8_sum16(codes + d);
    q8_query_starts(job.prepared, job.head_dim)[r] = -128 * sum;
  }
}

static void q8_prepare_queries(const AttentionJob& job) {
  using Fn = void (*)(const AttentionJob&);
  static constexpr Fn kRows[kAttentionRows] = {q8_prepare_rows<1>, q8_prepare_rows<2>, q8_prepare_rows<3>,
                                               q8_prepare_rows<4>, q8_prepare_rows<5>, q8_prepare_rows<6>,
                                               q8_prepare_rows<7>, q8_prepare_rows<8>};
  kRows[job.n_rows - 1](job);
}

// The block of keys that is wanted next, fetched line by line in the order of memory while this one is computed: asked
// for all at once, the lines would wait for each other and the arithmetic for them.
struct Q8Ahead {
  const std::byte* groups[kKeyBlock / 16 + 1];  // the last: where fetching may go on without use
  const std::byte *at, *end;                    // in groups[group]
  uint32_t group, n_groups;
  size_t group_bytes;

  void begin(const AttentionJob& job) {
    group_bytes = q8_group_bytes(job.head_dim);
    group = n_groups = 0;
    if (job.next) {
      const AttentionJob& next = *job.next;
      const uint32_t start = job.next_block * kKeyBlock, begin = next.key_begin[0], end = next.key_end[next.n_rows - 1];
      for (uint32_t key = start; key < start + kKeyBlock && key < end; key += 16)
        if (key + 16 > begin) groups[n_groups++] = q8_group(next, key);
    }
    groups[n_groups] = job.prepared;
    enter();
  }
  void enter() {
    at = groups[group];
    end = at + (group < n_groups ? group_bytes : 0);
  }
  // A few lines too many at the end of a group are the next one's, or nobody's.
  template <uint32_t Lines>
  void fetch() {
    for (uint32_t i = 0; i < Lines; ++i) __builtin_prefetch(at + 64 * i);
    at += 64 * Lines;
    if (at >= end) group += group < n_groups, enter();
  }
  void finish() {
    while (group < n_groups) fetch<1>();
  }
};

// What one block of 128 keys needs while its rows go through it.
struct Q8Block {
  uint32_t start, first, last;  // first key; groups of 16 that some row sees: [first, last)
  const std::byte* groups[kKeyBlock / 16];
  Q8Ahead ahead;
  alignas(64) float t[kAttentionRows][kKeyBlock];
  // Weights of the 4 tokens of quad l of group g at [row][64 * (g / 4) + 16 * l + 4 * (g % 4)].
  alignas(64) uint8_t weights[kAttentionRows][kKeyBlock];
  float units[kAttentionRows];
};

// Products of rows [row, row + R) with G groups of keys from group g on, times the keys' scales.
template <uint32_t R, uint32_t G, bool Fetch>
static inline void q8_score(const AttentionJob& job, Q8Block& block, uint32_t row, uint32_t g) {
  const int8_t* q = q8_query_codes(job.prepared, job.head_dim, row);
  const int32_t* starts = q8_query_starts(job.prepared, job.head_dim) + row;
  const std::byte* k[G];
  for (uint32_t i = 0; i < G; ++i) k[i] = block.groups[g + i];
  D sum[R][G];
  for (uint32_t r = 0; r < R; ++r)
    for (uint32_t i = 0; i < G; ++i) sum[r][i] = D::start(starts[r]);
  for (uint32_t d = 0; d < job.head_dim; d += 4) {
    typename D::Bytes keys[G];
    for (uint32_t i = 0; i < G; ++i) keys[i] = D::load_unsigned(k[i] + 16 * d);
    if constexpr (Fetch) block.ahead.template fetch<G>();
#pragma GCC unroll 8
    for (uint32_t r = 0; r < R; ++r) {
      const typename D::Four four = D::four_signed(q + r * job.head_dim + d);
#pragma GCC unroll 8
      for (uint32_t i = 0; i < G; ++i) sum[r][i].add_keys(keys[i], four);
    }
  }
  for (uint32_t i = 0; i < G; ++i) {
    const V scales = V::load(reinterpret_cast<const float*>(k[i] + q8_key_scales_at(job.head_dim)));
    for (uint32_t r = 0; r < R; ++r) V::store(block.t[row + r] + 16 * (g + i), V::mul(sum[r][i].floats(), scales));
  }
}

static inline V q8_exp2(V x) {
  V n, f;
  q8_split(x, n, f);
  return q8_scale_by(V::fma(V::fma(V::set(kQ8Exp2[2]), f, V::set(kQ8Exp2[1])), f, V::set(kQ8Exp2[0])), n);
}

static inline V q8_value_scales(const AttentionJob& job, const std::byte* group) {
  return V::load(reinterpret_cast<const float*>(group + q8_value_scales_at(job.head_dim)));
}

// Caps a row's scores and hides the keys that it does not see.
static inline void q8_mask(const AttentionJob& job, Q8Block& block, uint32_t r, float scale) {
  const V cap = V::set(job.soft_cap);
  for (uint32_t g = block.first; g < block.last; ++g) {
    float* t = block.t[r] + 16 * g;
    V x = V::load(t);
    if (job.soft_cap > 0.0f) x = V::mul(cap, tanh_v(V::div(V::mul(x, V::set(scale)), cap)));
    const int32_t key = static_cast<int32_t>(block.start + 16 * g);
    V::store(t, V::keep_lanes(x, static_cast<int32_t>(job.key_begin[r]) - key,
                              static_cast<int32_t>(job.key_end[r]) - key, V::set(-__builtin_inff())));
  }
}

// Scores of a row to weights times the values' scales, in place.
template <bool Whole>
static inline void q8_weights(const AttentionJob& job, Q8Block& block, uint32_t r, float c, float max, V& sum,
                              V& weight, V& most) {
  constexpr uint32_t kGroups = kKeyBlock / 16;
  const V factor = V::set(c), shift = V::set(-(max * c) - 1.0f);
  sum = weight = most = V::set(0.0f);
  auto group = [&](uint32_t g) {
    V p = q8_exp2(V::fma(V::load(block.t[r] + 16 * g), factor, shift));
    if constexpr (!Whole) {
      const int32_t key = static_cast<int32_t>(block.start + 16 * g);
      p = V::keep_lanes(p, static_cast<int32_t>(job.key_begin[r]) - key, static_cast<int32_t>(job.key_end[r]) - key,
                        V::set(0.0f));
    }
    sum = V::add(sum, p);
    const V w = V::mul(p, q8_value_scales(job, block.groups[g]));
    V::store(block.t[r] + 16 * g, w);
    weight = V::add(weight, w);
    most = V::max(most, w);
  };
  if constexpr (Whole) {
#pragma GCC unroll 8
    for (uint32_t g = 0; g < kGroups; ++g) group(g);
  } else {
    for (uint32_t g = 0; g < kGroups; ++g) {
      if (g >= block.first && g < block.last)
        group(g);
      else
        V::store(block.t[r] + 16 * g, V::set(0.0f));
    }
  }
}

// Scores of all rows to weights in bytes. Step by step for all rows, because each row's steps wait for one another.
template <uint32_t R>
static inline void q8_soften(const AttentionJob& job, Q8Block& block, float* max_of, float* sum_of) {
  constexpr uint32_t kGroups = kKeyBlock / 16;
  alignas(64) float max[16], sum[16], weight[16], codes[16], most[16], scale[R];
  bool whole[R];
  V lanes[R], weights[R], more[R];
  for (uint32_t r = 0; r < R; ++r) {
    scale[r] = q8_query_scales(job.prepared, job.head_dim)[r];
    whole[r] = job.key_begin[r] <= block.start && job.key_end[r] >= block.start + kKeyBlock && job.soft_cap <= 0.0f;
    if (!whole[r]) q8_mask(job, block, r, scale[r]);
    if (job.soft_cap > 0.0f) scale[r] = 1.0f;
    V top = V::set(-__builtin_inff());
    if (whole[r]) {
#pragma GCC unroll 8
      for (uint32_t g = 0; g < kGroups; ++g) top = V::max(top, V::load(block.t[r] + 16 * g));
    } else {
      for (uint32_t g = block.first; g < block.last; ++g) top = V::max(top, V::load(block.t[r] + 16 * g));
    }
    lanes[r] = top;
  }
  q8_fold_max<R>(lanes, max);
  for (uint32_t r = 0; r < R; ++r) {
    const bool any = max[r] > -__builtin_inff();
    max_of[r] = any ? max[r] * scale[r] : -__builtin_inff();
    (whole[r] ? q8_weights<true> : q8_weights<false>)(job, block, r, scale[r] * kQ8Log2e, max[r], lanes[r], weights[r],
                                                      more[r]);
  }
  q8_fold_sum<R>(lanes, sum);
  q8_fold_sum<R>(weights, weight);
  q8_fold_max<R>(more, most);
  for (uint32_t r = 0; r < R; ++r) {
    const bool some = most[r] > kQ8Smallest;
    sum_of[r] = sum[r];
    most[r] = some ? 255.0f / most[r] : 0.0f;
  }
  static constexpr int8_t kOnes[4] = {1, 1, 1, 1};
  const typename D::Four ones = D::four_signed(kOnes);
  for (uint32_t r = 0; r < R; ++r) {
    const V factor = V::set(most[r]);
#pragma GCC unroll 2
    for (uint32_t g = 0; g < kGroups; g += 4) {
      const float* w = block.t[r] + 16 * g;
      q8_weights64(block.weights[r] + 16 * g, V::mul(V::load(w), factor), V::mul(V::load(w + 16), factor),
                   V::mul(V::load(w + 32), factor), V::mul(V::load(w + 48), factor));
    }
    D count = D::start(0);
    for (uint32_t half = 0; half < kKeyBlock; half += 64)
      count.add_keys(D::load_unsigned(reinterpret_cast<const std::byte*>(block.weights[r] + half)), ones);
    lanes[r] = count.floats();
  }
  q8_fold_sum<R>(lanes, codes);
  for (uint32_t r = 0; r < R; ++r) block.units[r] = codes[r] > 0.0f ? weight[r] / codes[r] : 0.0f;
}

// Weighted values of rows [row, row + R), head dimensions [d, d + 16 * C), to acc; More: merged into it.
template <uint32_t R, uint32_t C, bool More, bool Fetch>
static inline void q8_weigh(const AttentionJob& job, Q8Block& block, uint32_t row, uint32_t d,
                            const MergeWeights& merge, float* acc) {
  D sum[R][C];
  for (uint32_t r = 0; r < R; ++r)
    for (uint32_t c = 0; c < C; ++c) sum[r][c] = D::start(0);
  for (uint32_t g = block.first; g < block.last; ++g) {
    const std::byte* v = block.groups[g] + q8_values_at(job.head_dim) + 4 * size_t{d};
    const uint8_t* w = block.weights[row] + 64 * (g / 4) + 4 * (g % 4);
    for (uint32_t quad = 0; quad < 4; ++quad, v += 4 * size_t{job.head_dim}, w += 16) {
      typename D::Bytes values[C];
      for (uint32_t c = 0; c < C; ++c) values[c] = D::load_signed(v + 64 * c);
      if constexpr (Fetch) block.ahead.template fetch<C>();
#pragma GCC unroll 8
      for (uint32_t r = 0; r < R; ++r) {
        const typename D::Four four = D::four_unsigned(w + r * kKeyBlock);
#pragma GCC unroll 8
        for (uint32_t c = 0; c < C; ++c) sum[r][c].add_values(four, values[c]);
      }
    }
  }
  for (uint32_t r = 0; r < R; ++r) {
    const V unit = V::set(block.units[row + r]);
    for (uint32_t c = 0; c < C; ++c) {
      float* to = acc + size_t{row + r} * job.head_dim + d + 16 * c;
      const V x = V::mul(sum[r][c].floats(), unit);
      V::store(to, More ? merged(V::load(to), x, merge, row + r) : x);
    }
  }
}

// Rows [row, row + R) against all groups of the block.
template <uint32_t R, bool Fetch>
static inline void q8_score_rows(const AttentionJob& job, Q8Block& block, uint32_t row) {
  constexpr uint32_t kGroups = D::kSums / R >= 8 ? 8 : D::kSums / R >= 4 ? 4 : D::kSums / R >= 2 ? 2 : 1;
  uint32_t g = block.first;
  for (; g + kGroups <= block.last; g += kGroups) q8_score<R, kGroups, Fetch>(job, block, row, g);
  for (; g < block.last; ++g) q8_score<R, 1, Fetch>(job, block, row, g);
}

template <uint32_t R, bool More, bool Fetch>
static inline void q8_weigh_rows(const AttentionJob& job, Q8Block& block, uint32_t row, const MergeWeights& merge,
                                 float* acc) {
  constexpr uint32_t kColumns = D::kSums / R >= 4 ? 4 : D::kSums / R >= 2 ? 2 : 1;
  uint32_t d = 0;
  for (; d + 16 * kColumns <= job.head_dim; d += 16 * kColumns)
    q8_weigh<R, kColumns, More, Fetch>(job, block, row, d, merge, acc);
  for (; d < job.head_dim; d += 16) q8_weigh<R, 1, More, Fetch>(job, block, row, d, merge, acc);
}

// Rows in tiles of at most D::kRows. More: merges into what `out` has, as merge_partial would.
template <uint32_t R, bool More>
static void q8_attend_rows(const AttentionJob& job, uint32_t key_block, AttentionPartial& out) {
  Q8Block block;
  block.start = key_block * kKeyBlock;
  uint32_t begin = block.start + kKeyBlock, end = block.start;
  for (uint32_t r = 0; r < R; ++r) {
    const uint32_t row_begin = job.key_begin[r] > block.start ? job.key_begin[r] : block.start;
    const uint32_t row_end = job.key_end[r] < block.start + kKeyBlock ? job.key_end[r] : block.start + kKeyBlock;
    if (row_begin >= row_end) continue;
    begin = row_begin < begin ? row_begin : begin;
    end = row_end > end ? row_end : end;
  }
  block.first = begin < end ? (begin - block.start) / 16 : 0;
  block.last = begin < end ? (end - block.start + 15) / 16 : 0;
  for (uint32_t g = block.first; g < block.last; ++g) {
    block.groups[g] = q8_group(job, block.start + 16 * g);
  }
  constexpr bool kFetch = R <= 4;  // few rows: a decode step, which waits for memory
  if constexpr (kFetch) block.ahead.begin(job);
  constexpr uint32_t kTile = R < D::kRows ? R : D::kRows, kRest = R % kTile;
  if (block.first < block.last) {
    for (uint32_t row = 0; row + kTile <= R; row += kTile) q8_score_rows<kTile, kFetch>(job, block, row);
    if constexpr (kRest != 0) q8_score_rows<kRest, kFetch>(job, block, R - kRest);
  }
  MergeWeights merge;
  if constexpr (More) {
    AttentionPartial found;
    q8_soften<R>(job, block, found.max, found.sum);
    merge_weights(out, found, R, merge);
  } else {
    q8_soften<R>(job, block, out.max, out.sum);
  }
  for (uint32_t row = 0; row + kTile <= R; row += kTile)
    q8_weigh_rows<kTile, More, kFetch>(job, block, row, merge, out.acc);
  if constexpr (kRest != 0) q8_weigh_rows<kRest, More, kFetch>(job, block, R - kRest, merge, out.acc);
  if constexpr (kFetch) block.ahead.finish();
}

template <bool More>
static void q8_attend_block(const AttentionJob& job, uint32_t key_block, AttentionPartial& out) {
  using Fn = void (*)(const AttentionJob&, uint32_t, AttentionPartial&);
  static constexpr Fn kRows[kAttentionRows] = {
      q8_attend_rows<1, More>, q8_attend_rows<2, More>, q8_attend_rows<3, More>, q8_attend_rows<4, More>,
      q8_attend_rows<5, More>, q8_attend_rows<6, More>, q8_attend_rows<7, More>, q8_attend_rows<8, More>};
  kRows[job.n_rows - 1](job, key_block, out);
}

// The set's entries: what the cache's type asks for.
static void store_kv(const StoreKvJob& job) {
  (job.type == KvType::kQ8 ? q8_store : store_kv16)(job);
}
static void prepare_queries(const AttentionJob& job) {
  if (job.type == KvType::kQ8) q8_prepare_queries(job);
}
static void attend_block(const AttentionJob& job, uint32_t key_block, AttentionPartial& out) {
  (job.type == KvType::kQ8 ? q8_attend_block<false> : attend_block16)(job, key_block, out);
}
static void attend_more(const AttentionJob& job, uint32_t key_block, AttentionPartial& total) {
  q8_attend_block<true>(job, key_block, total);
}
