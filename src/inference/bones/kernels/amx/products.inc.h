// The products of the AMX set. Included inside the anonymous namespace of a file compiled with AVX-512 VNNI and GFNI,
// after avx512/dot.inc.h, avx512/packings.inc.h and a struct Tiles: the tile registers, of the CPU or emulated
// (configure, release; zero<t>, load<t>, store<t>, dot<c, a, b>).
//
// Weights are the first factor: a strip of 16 columns is unpacked once into rows of one column's unsigned codes.
// Activations are the second: tiles of 16 rows lie as [group of 4 inputs][row][4], which is what TDPBUSD wants of it.
// So sums come out as [column][row]: what belongs to a row (scales, where sums start) is a vector, what belongs to a
// column a broadcast. Sums start from x.start4 (or neg128, neg32) by a load with stride 0. Scales change every 32
// inputs (Q6: 16), so a product has 32 of the 64 inputs that a tile could take; sums go through the first-level cache
// to AVX-512, while the tiles of the next scale group are at work. 2 strips by 2 tiles of rows at a time: 4 tiles of
// sums, 4 of factors.

constexpr int kRows = kAmxTileRows;

// Unpacking leaves the columns of a strip in this order.
constexpr int column_of(int tile_row) {
  return 4 * (tile_row % 4) + tile_row / 4;
}

// Q4's place beside Q5, Q6 and Q8; its integer scales are read by themselves.
struct Q4 {
  static constexpr bool kMinimum = false, kHalves = false;
  static constexpr size_t kBlockBytes = kQ4TileBytes;
  __m512i v[4];
  const std::byte* tile;
  explicit Q4(const std::byte* strip, uint32_t b) : tile(strip + size_t{b} * kQ4TileBytes) {
    for (int j = 0; j < 4; ++j) v[j] = load(tile + 64 * j);
  }
  template <int G>
  __m512i codes() const {
    return G < 4 ? low_nibbles(v[G & 3]) : high_nibbles(v[G & 3]);
  }
};

template <typename P>
constexpr bool kFolded = __is_same(P, Q4);
template <typename P>
constexpr int kPieces = P::kHalves ? 2 : 1;  // of a block, each with sums of its own
template <typename P>
constexpr int kInputs = 32 / kPieces<P>;

template <typename P>
size_t bytes_of_strip(uint32_t blocks) {
  return strip_stride<P>(blocks) + (kFolded<P> ? kQ4UnitBytes : 0);
}

// Two strips unpacked in scratch: codes [block][strip][piece][row of the tile][inputs]; Q4: words
// [block][strip][column], else scales [block][piece][strip][column] and minima [block][strip][column].
template <typename P, int S>
struct Panel {
  std::byte* codes;
  std::byte* words;
  float *scale, *minimum;
  __m512 unit[S];
  Panel(std::byte* scratch, uint32_t blocks)
      : codes(scratch),
        words(scratch + size_t{blocks} * 512 * S),
        scale(reinterpret_cast<float*>(words)),
        minimum(scale + size_t{blocks} * kPieces<P> * S * 16) {}
};

// Four groups as columns of 16 bytes: lane L of out[j] is column 4 * L + j.
inline void transpose_words(__m512i a, __m512i b, __m512i c, __m512i d, __m512i (&out)[4]) {
  const __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d), ab2 = _mm512_unpackhi_epi32(a, b),
                cd2 = _mm512_unpackhi_epi32(c, d);
  out[0] = _mm512_unpacklo_epi64(ab, cd);
  out[1] = _mm512_unpackhi_epi64(ab, cd);
  out[2] = _mm512_unpacklo_epi64(ab2, cd2);
  out[3] = _mm512_unpackhi_epi64(ab2, cd2);
}

template <typename P>
inline void unpack_codes(const P& block, std::byte* to) {
  __m512i low[4], high[4];
  transpose_words(block.template codes<0>(), block.template codes<1>(), block.template codes<2>(),
                  block.template codes<3>(), low);
  transpose_words(block.template codes<4>(), block.template codes<5>(), block.template codes<6>(),
                  block.template codes<7>(), high);
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    if constexpr (P::kHalves) {
      _mm512_store_si512(to + 64 * j, low[j]);
      _mm512_store_si512(to + 256 + 64 * j, high[j]);
    } else {
      _mm512_store_si512(to + 128 * j, _mm512_permutex2var_epi64(low[j], first, high[j]));
      _mm512_store_si512(to + 128 * j + 64, _mm512_permutex2var_epi64(low[j], second, high[j]));
    }
  }
}

template <typename P, int S>
void unpack(Panel<P, S>& panel, const std::byte* strip, uint32_t s, uint32_t blocks) {
  for (uint32_t b = 0; b < blocks; ++b) {
    const P block(strip, b);
    const size_t at = size_t{b} * S + s;
    unpack_codes(block, panel.codes + at * 512);
    if constexpr (kFolded<P>) {
      _mm512_store_si512(panel.words + at * 64, load(block.tile + 256));
    } else {
      for (int h = 0; h < kPieces<P>; ++h)
        _mm512_store_ps(panel.scale + ((size_t{b} * kPieces<P> + h) * S + s) * 16, block.scale(h));
      if constexpr (P::kMinimum) _mm512_store_ps(panel.minimum + at * 16, block.minimum());
    }
  }
  if constexpr (kFolded<P>)
    panel.unit[s] = _mm512_loadu_ps(reinterpret_cast<const float*>(strip + size_t{blocks} * kQ4TileBytes));
}

inline void scale_dot_broadcast(__m512i& acc, __m512i d, const int32_t* word) {
  asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(d), "m"(*word));
}

// v[column] of 16 rows to v[row] of 16 columns.
inline void transpose(__m512 (&v)[16]) {
  __m512 a[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512 p = _mm512_unpacklo_ps(v[i], v[i + 1]), q = _mm512_unpackhi_ps(v[i], v[i + 1]),
                 r = _mm512_unpacklo_ps(v[i + 2], v[i + 3]), s = _mm512_unpackhi_ps(v[i + 2], v[i + 3]);
    a[i] = _mm512_shuffle_ps(p, r, 0x44);  // rows 0, 4, 8, 12 of these four columns; then 1, 5 …, 2 …, 3 …
    a[i + 1] = _mm512_shuffle_ps(p, r, 0xee);
    a[i + 2] = _mm512_shuffle_ps(q, s, 0x44);
    a[i + 3] = _mm512_shuffle_ps(q, s, 0xee);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512 p = _mm512_shuffle_f32x4(a[j], a[4 + j], 0x88), q = _mm512_shuffle_f32x4(a[j], a[4 + j], 0xdd),
                 r = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0x88),
                 s = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0xdd);
    v[j] = _mm512_shuffle_f32x4(p, r, 0x88);
    v[8 + j] = _mm512_shuffle_f32x4(p, r, 0xdd);
    v[4 + j] = _mm512_shuffle_f32x4(q, s, 0x88);
    v[12 + j] = _mm512_shuffle_f32x4(q, s, 0xdd);
  }
}

// S strips by T tiles of rows over all of k.
template <typename P, int S, int T>
class Product {
 public:
  Product(const Panel<P, S>& panel, const Activations& x, uint32_t first_tile)
      : panel_(panel), x_(x), tile_(first_tile), blocks_(x.blocks()) {
    for (auto& strip : totals_)
      for (auto& tile : strip)
        for (int i = 0; i < kRows; ++i) _mm512_store_ps(tile[i], _mm512_setzero_ps());
  }

  void run() {
    multiply(0, sums_[0]);
    for (uint32_t b = 0, turn = 0; b < blocks_; b += kScaleBlocks, turn ^= 1) {
      if (b + kScaleBlocks < blocks_) multiply(b + kScaleBlocks, sums_[turn ^ 1]);
      if (blocks_ - b >= kScaleBlocks)
        add_up<true>(b, sums_[turn]);
      else
        add_up<false>(b, sums_[turn]);
    }
  }

  void write(float* out, size_t stride, bool add) const {
    for (int t = 0; t < T; ++t) {
      const uint32_t first = (tile_ + static_cast<uint32_t>(t)) * kRows,
                     rows = x_.rows - first < kRows ? x_.rows - first : kRows;
      for (int s = 0; s < S; ++s)
        write_tile(totals_[s][t], panel_.unit[s], rows, out + first * stride + 16 * s, stride, add);
    }
  }

 private:
  using Sums = int32_t[kScaleBlocks * kPieces<P>][S][T][kRows][16];

  size_t at(int t, uint32_t b) const { return size_t{tile_ + static_cast<uint32_t>(t)} * blocks_ + b; }

  // Sums of the scale group that starts at block b. Tiles 0 to 3: sums; 4, 5: weights; 6, 7: activations.
  void multiply(uint32_t b, Sums& to) const {
    const uint32_t n = blocks_ - b < kScaleBlocks ? blocks_ - b : kScaleBlocks;
    for (uint32_t i = 0; i < n; ++i)
      for (int h = 0; h < kPieces<P>; ++h) multiply_piece(b + i, h, to[i * kPieces<P> + h]);
  }

  void multiply_piece(uint32_t b, int h, int32_t (&to)[S][T][kRows][16]) const {
    load_weights<0>(b, h);
    load_rows<0>(b, h);
    multiply_tile<0, 0>(b, h);
    load_rows<1>(b, h);
    multiply_tile<0, 1>(b, h);
    load_weights<1>(b, h);
    multiply_tile<1, 0>(b, h);
    multiply_tile<1, 1>(b, h);
    store<0, 0>(to);
    store<0, 1>(to);
    store<1, 0>(to);
    store<1, 1>(to);
  }

  template <int s>
  void load_weights(uint32_t b, int h) const {
    if constexpr (s < S)
      Tiles::template load<4 + s>(panel_.codes + (size_t{b} * S + s) * 512 + h * kRows * kInputs<P>, kInputs<P>);
  }
  template <int t>
  void load_rows(uint32_t b, int h) const {
    if constexpr (t < T) Tiles::template load<6 + t>(x_.codes + (at(t, b) * 32 + h * kInputs<P>)*kRows, 4 * kRows);
  }
  template <int s, int t>
  void multiply_tile(uint32_t b, int h) const {
    if constexpr (s < S && t < T) {
      if constexpr (kFolded<P>)
        Tiles::template load<2 * s + t>(x_.start4 + at(t, b) * kRows, 0);
      else if constexpr (__is_same(P, Q8))
        Tiles::template load<2 * s + t>(x_.neg128 + at(t, b) * kRows, 0);
      else if constexpr (__is_same(P, Q6))
        Tiles::template load<2 * s + t>(x_.neg32 + (at(t, b) * 2 + h) * kRows, 0);
      else
        Tiles::template zero<2 * s + t>();
      Tiles::template dot<2 * s + t, 4 + s, 6 + t>();
    }
  }
  template <int s, int t>
  static void store(int32_t (&to)[S][T][kRows][16]) {
    if constexpr (s < S && t < T) Tiles::template store<2 * s + t>(to[s][t], 64);
  }

  // Adds the scaled sums of one scale group. Whole: of kScaleBlocks blocks.
  template <bool Whole>
  void add_up(uint32_t b, const Sums& from) {
    const uint32_t n = Whole ? kScaleBlocks : blocks_ - b;
    for (int s = 0; s < S; ++s) {
      for (int t = 0; t < T; ++t) {
        if constexpr (kFolded<P>)
          add_folded(b, n, s, t, from);
        else
          add_scaled(b, n, s, t, from);
      }
    }
  }

  __attribute__((always_inline)) void add_folded(uint32_t b, uint32_t n, int s, int t, const Sums& from) {
    const __m512 scale = _mm512_loadu_ps(x_.scale + at(t, b) * kRows);
    const int32_t* words = reinterpret_cast<const int32_t*>(panel_.words) + (size_t{b} * S + s) * 16;
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      __m512i sum = _mm512_setzero_si512();
      for (uint32_t j = 0; j < n; ++j)
        scale_dot_broadcast(sum, _mm512_load_si512(from[j][s][t][i]), words + j * S * 16 + column_of(i));
      float* total = totals_[s][t][i];
      _mm512_store_ps(total, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, _mm512_load_ps(total)));
    }
  }

  __attribute__((always_inline)) void add_scaled(uint32_t b, uint32_t n, int s, int t, const Sums& from) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const int column = column_of(i);
      __m512 total = _mm512_load_ps(totals_[s][t][i]);
      for (uint32_t j = 0; j < n; ++j) {
        const __m512 x_scale = _mm512_loadu_ps(x_.scale + at(t, b + j) * kRows);
        for (int h = 0; h < kPieces<P>; ++h) {
          const float w = panel_.scale[((size_t{b + j} * kPieces<P> + h) * S + s) * 16 + column];
          const __m512i sum = _mm512_load_si512(from[j * kPieces<P> + h][s][t][i]);
          total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(_mm512_set1_ps(w), x_scale), total);
        }
        if constexpr (P::kMinimum) {
          const float minimum = panel_.minimum[(size_t{b + j} * S + s) * 16 + column];
          total = _mm512_fmadd_ps(_mm512_set1_ps(minimum), _mm512_loadu_ps(x_.sum + at(t, b + j) * kRows), total);
        }
      }
      _mm512_store_ps(totals_[s][t][i], total);
    }
  }

  static void write_tile(const float (&total)[kRows][16], __m512 unit, uint32_t rows, float* out, size_t stride,
                         bool add) {
    __m512 v[16];
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) v[column_of(i)] = _mm512_load_ps(total[i]);
    transpose(v);
    for (uint32_t r = 0; r < rows; ++r) finish(out + r * stride, kFolded<P> ? _mm512_mul_ps(v[r], unit) : v[r], add);
  }

  const Panel<P, S>& panel_;
  const Activations& x_;
  uint32_t tile_, blocks_;
  alignas(64) float totals_[S][T][kRows][16];
  alignas(64) Sums sums_[2];
};

template <typename P, int S>
void multiply_strips(const MatmulJob& job, uint32_t strip) {
  const Activations& x = *job.x;
  const uint32_t blocks = x.blocks(), tiles = x.tiles();
  const size_t bytes = bytes_of_strip<P>(blocks);
  const std::byte* from = job.w.data + (size_t{job.first_strip} + strip) * bytes;
  Panel<P, S> panel(job.scratch, blocks);
  for (uint32_t s = 0; s < S; ++s) unpack<P, S>(panel, from + s * bytes, s, blocks);
  float* out = job.out + strip * kStrip;
  for (uint32_t tile = 0; tile < tiles; tile += 2) {
    prefetch_share(from + S * bytes, S * bytes, tile / 2, (tiles + 1) / 2);
    if (tile + 2 <= tiles) {
      Product<P, S, 2> product(panel, x, tile);
      product.run();
      product.write(out, job.out_stride, job.add);
    } else {
      Product<P, S, 1> product(panel, x, tile);
      product.run();
      product.write(out, job.out_stride, job.add);
    }
  }
}

template <typename P>
TileConfig config_of() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = tile < 6 ? kRows : kInputs<P> / 4;
    config.row_bytes[tile] = tile == 4 || tile == 5 ? kInputs<P> : 4 * kRows;
  }
  return config;
}

template <typename P>
void multiply_all(const MatmulJob& job) {
  Tiles::configure(config_of<P>());
  uint32_t strip = 0;
  for (; strip + 2 <= job.n_strips; strip += 2) multiply_strips<P, 2>(job, strip);
  if (strip < job.n_strips) multiply_strips<P, 1>(job, strip);
  Tiles::release();
}

void multiply_quantised(const MatmulJob& job) {
  switch (static_cast<uint32_t>(job.w.packing)) {
    case kPackingQ4:
      return multiply_all<Q4>(job);
    case kPackingQ5:
      return multiply_all<Q5>(job);
    case kPackingQ6:
      return multiply_all<Q6>(job);
    default:
      return multiply_all<Q8>(job);
  }
}
