// Every kernel set of this machine against the reference, bit for bit, over ugly shapes: one row, odd rows, just over a
// tile, one block of k, odd blocks.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "inference/bones/kernels/kernel_choice.h"
#include "inference/bones/kernels/reference/tile_access.h"
#include "inference/bones/ops/workspace.h"
#include "inference/bones/weights_image.h"

namespace tie::bones {
namespace {

// 64-byte aligned, zeroed, counted in elements.
template <typename T>
class Buffer {
 public:
  explicit Buffer(size_t n) : raw_(n * sizeof(T) + 64), n_(n) {}
  T* data() { return reinterpret_cast<T*>(raw_.data() + (64 - reinterpret_cast<uintptr_t>(raw_.data()) % 64) % 64); }
  T& operator[](size_t i) { return data()[i]; }
  size_t size() const { return n_; }

 private:
  std::vector<std::byte> raw_;
  size_t n_;
};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  float normal(float spread = 1.0f) { return std::normal_distribution<float>(0, spread)(engine_); }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(engine_() % n); }
  void fill(float* p, size_t n, float spread = 1.0f) {
    for (size_t i = 0; i < n; ++i) p[i] = normal(spread);
  }

 private:
  std::mt19937_64 engine_;
};

// Integer scales and minima over their whole range, both signs, and the units of the columns.
void random_folded_scales(Random& random, std::byte* strip, uint32_t k) {
  for (uint32_t b = 0; b < k / kBlock; ++b) {
    for (uint32_t i = 0; i < 2 * kStrip; ++i) {
      const auto value = static_cast<int16_t>(static_cast<int32_t>(random.below(2 * kFoldedMax + 1)) - kFoldedMax);
      std::memcpy(strip + size_t{b} * kQ4TileBytes + 256 + 2 * i, &value, 2);
    }
  }
  for (uint32_t c = 0; c < kStrip; ++c) {
    const float unit = std::fabs(random.normal(1e-5f));
    std::memcpy(strip + strip_bytes(Packing::kTileQ4, k) - kQ4UnitBytes + 4 * c, &unit, 4);
  }
}

// Random bytes are valid codes; scales and minima must be finite.
void random_strip(Packing packing, Random& random, std::byte* strip, uint32_t k) {
  const size_t bytes = strip_bytes(packing, k);
  if (!is_quantised(packing)) {
    for (size_t i = 0; i < size_t{k} * kStrip; ++i) {
      const float f = random.normal();
      const auto half = static_cast<uint16_t>(packing == Packing::kTileF16 ? float_to_half(f) : float_to_bf16(f));
      if (packing == Packing::kTileF32)
        std::memcpy(strip + 4 * i, &f, 4);
      else
        std::memcpy(strip + 2 * i, &half, 2);
    }
    return;
  }
  for (size_t i = 0; i < bytes; ++i) strip[i] = static_cast<std::byte>(random.below(256));
  if (packing == Packing::kTileQ4) return random_folded_scales(random, strip, k);
  const size_t tile = packing == Packing::kTileQ8 ? kQ8TileBytes : strip_bytes(packing, kBlock), halves = 32;
  for (size_t at = tile; at <= bytes; at += tile) {
    for (size_t i = 0; i < halves; ++i) {
      const auto half = static_cast<uint16_t>(float_to_half(random.normal(0.1f)));
      std::memcpy(strip + at - 64 + 2 * i, &half, 2);
    }
  }
}

std::vector<const KernelSet*> fast_sets() {
  std::vector<const KernelSet*> sets = runnable_kernel_sets();
  sets.pop_back();
  if (auto emulated = choose_kernel_set("amx_emulated")) sets.push_back(*emulated);
  return sets;
}

struct Acts {
  Arena arena;
  Activations acts;
  Acts(uint32_t rows, uint32_t k, uint32_t group, const KernelSet& set = kReferenceKernels) {
    take_activations(arena, rows, k);
    EXPECT_TRUE(arena.allocate());
    acts = take_activations(arena, rows, k);
    acts.rows = rows;
    acts.group = group;
    acts.rows_per_tile = set.tile_rows ? set.tile_rows(rows) : rows_per_tile(rows);
    acts.want_f32 = acts.want_codes = true;
  }
};

void expect_same(const Activations& e, const Activations& g, const char* name) {
  const size_t n = size_t{e.tiles()} * e.rows_per_tile * e.blocks();
  EXPECT_EQ(0, std::memcmp(e.codes, g.codes, n * 32)) << name;
  EXPECT_EQ(0, std::memcmp(e.scale, g.scale, n * 4)) << name;
  EXPECT_EQ(0, std::memcmp(e.sum, g.sum, n * 4)) << name;
  EXPECT_EQ(0, std::memcmp(e.start4, g.start4, n * 4)) << name;
  EXPECT_EQ(0, std::memcmp(e.neg128, g.neg128, n * 4)) << name;
  EXPECT_EQ(0, std::memcmp(e.neg32, g.neg32, n * 8)) << name;
}

void quantize_all(const KernelSet& set, const float* x, const float* row_scale, const float* weight,
                  Activations& acts) {
  for (uint32_t tile = 0; tile < acts.tiles(); ++tile) {
    QuantizeJob job;
    job.x = x, job.x_stride = acts.k, job.row_scale = row_scale, job.weight = weight, job.tile = tile,
    job.n_blocks = acts.blocks(), job.out = &acts;
    set.quantize(job);
  }
}

const uint32_t kRows[] = {1, 2, 3, 5, 7, 12, 13, 25, 32, 33, kFusedRows, kFusedRows + 1, 79, 85};
const uint32_t kDepths[] = {32, 64, 96, 256, 576};

TEST(Kernels, QuantisedActivationsAreTheReferencesToTheBit) {
  Random random(1);
  for (const KernelSet* set : fast_sets()) {
    for (uint32_t rows : kRows) {
      for (uint32_t k : kDepths) {
        Buffer<float> x(rows * k), weight(k), scale(rows);
        random.fill(x.data(), rows * k), random.fill(weight.data(), k), random.fill(scale.data(), rows);
        x[random.below(rows * k)] = 40.0f;
        for (uint32_t i = 0; i < 32; ++i) x[i] = 0.0f;  // a block of nothing
        const uint32_t group = random.below(2) ? kScaleBlocks : 1;
        Acts expected(rows, k, group, *set), got(rows, k, group, *set);
        quantize_all(kReferenceKernels, x.data(), scale.data(), weight.data(), expected.acts);
        quantize_all(*set, x.data(), scale.data(), weight.data(), got.acts);
        expect_same(expected.acts, got.acts, set->name);
        EXPECT_EQ(0, std::memcmp(expected.acts.f32, got.acts.f32, size_t{rows} * k * 4)) << set->name;
      }
    }
  }
}

// Without the unrounded rows, which is the usual case, and in two parts, as threads share a row.
TEST(Kernels, CodesAloneAreTheReferencesToTheBit) {
  Random random(11);
  for (const KernelSet* set : fast_sets()) {
    for (uint32_t rows : {1u, 2u, 3u, 4u, 5u, 6u, 8u, 9u, 11u, 12u, 13u, 26u, 33u, kFusedRows + 1}) {
      for (uint32_t k : kDepths) {
        const uint32_t group = random.below(2) ? kScaleBlocks : 1;
        for (const bool normed : {false, true}) {
          Buffer<float> x(rows * k), weight(k), scale(rows);
          random.fill(x.data(), rows * k), random.fill(weight.data(), k), random.fill(scale.data(), rows);
          for (uint32_t i = 0; i < 32; ++i) x[random.below(rows * k)] = 0.0f;
          Acts expected(rows, k, group, *set), got(rows, k, group, *set);
          expected.acts.want_f32 = got.acts.want_f32 = false;
          const float *row_scale = normed ? scale.data() : nullptr, *w = normed ? weight.data() : nullptr;
          quantize_all(kReferenceKernels, x.data(), row_scale, w, expected.acts);
          const uint32_t blocks = k / kBlock, cut = blocks / 2 / group * group;
          for (uint32_t tile = 0; tile < got.acts.tiles(); ++tile) {
            for (const auto& [first, last] : {std::pair{cut, blocks}, std::pair{0u, cut}}) {
              QuantizeJob job;
              job.x = x.data() + first * kBlock, job.x_first_block = first, job.x_stride = k, job.row_scale = row_scale,
              job.weight = w, job.tile = tile, job.first_block = first, job.n_blocks = last - first,
              job.out = &got.acts;
              if (first < last) set->quantize(job);
            }
          }
          expect_same(expected.acts, got.acts, set->name);
        }
      }
    }
  }
}

class Products : public ::testing::TestWithParam<Packing> {};

TEST_P(Products, AreTheReferencesToTheBit) {
  Random random(2);
  for (const KernelSet* set : fast_sets()) {
    for (uint32_t rows : kRows) {
      for (uint32_t k : kDepths) {
        const uint32_t strips = 1 + random.below(5), n = strips * kStrip;
        Buffer<std::byte> w(strips * strip_bytes(GetParam(), k)), scratch(matmul_scratch_bytes(k));
        for (uint32_t s = 0; s < strips; ++s)
          random_strip(GetParam(), random, w.data() + s * strip_bytes(GetParam(), k), k);
        Buffer<float> x(rows * k);
        random.fill(x.data(), rows * k);
        Acts acts(rows, k, GetParam() == Packing::kTileQ4 ? kScaleBlocks : 1, *set);
        quantize_all(kReferenceKernels, x.data(), nullptr, nullptr, acts.acts);
        const uint32_t first = random.below(strips), count = strips - first;
        Buffer<float> expected(rows * n), got(rows * n);
        random.fill(expected.data(), rows * n);
        std::memcpy(got.data(), expected.data(), rows * n * 4);
        MatmulJob job{{GetParam(), n, k, w.data()}, &acts.acts,    first, count, expected.data(), n,
                      random.below(2) == 1,         scratch.data()};
        kReferenceKernels.matmul(job);
        job.out = got.data();
        set->matmul(job);
        EXPECT_EQ(0, std::memcmp(expected.data(), got.data(), rows * n * 4))
            << set->name << " rows " << rows << " k " << k << " strips " << count;
      }
    }
  }
}

// The sums of a scale group must not leave 32 bits, whatever the codes: largest of everything, both signs.
TEST(Kernels, FoldedSumsHoldTheLargestCodesAndScales) {
  const uint32_t k = kScaleBlocks * kBlock;
  for (const KernelSet* set : runnable_kernel_sets()) {
    for (const float sign : {1.0f, -1.0f}) {
      for (const uint32_t code : {0u, 255u}) {
        Buffer<std::byte> w(strip_bytes(Packing::kTileQ4, k)), scratch(matmul_scratch_bytes(k));
        std::memset(w.data(), static_cast<int>(code), w.size());
        for (uint32_t b = 0; b < kScaleBlocks; ++b) {
          for (uint32_t i = 0; i < 2 * kStrip; ++i) {
            const int16_t most = kFoldedMax;
            std::memcpy(w.data() + b * kQ4TileBytes + 256 + 2 * i, &most, 2);
          }
        }
        const float one = 1.0f;
        for (uint32_t c = 0; c < kStrip; ++c) std::memcpy(w.data() + w.size() - kQ4UnitBytes + 4 * c, &one, 4);
        Buffer<float> x(k), out(kStrip);
        for (uint32_t i = 0; i < k; ++i) x[i] = sign;
        Acts acts(1, k, kScaleBlocks);
        quantize_all(*set, x.data(), nullptr, nullptr, acts.acts);
        set->matmul(
            {{Packing::kTileQ4, kStrip, k, w.data()}, &acts.acts, 0, 1, out.data(), kStrip, false, scratch.data()});
        const double weight = kFoldedMax * ((code == 0 ? -8.0 : 7.0) + 8.0);
        EXPECT_NEAR(out[3], sign * weight * k, kFoldedMax * 0.2 + 1e-5 * weight * k) << set->name << " code " << code;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Products,
                         ::testing::Values(Packing::kTileQ4, Packing::kTileQ5, Packing::kTileQ6, Packing::kTileQ8,
                                           Packing::kTileF16, Packing::kTileBf16, Packing::kTileF32));

// The reference's own product against plain double arithmetic on dequantised weights: only activation rounding (1/254
// of a scale group's largest) may differ, and for Q4 an eighth of a code times the minimum.
TEST_P(Products, ReferenceIsCloseToExactArithmetic) {
  Random random(3);
  const uint32_t k = 576, n = 16;
  Buffer<std::byte> w(strip_bytes(GetParam(), k)), scratch(matmul_scratch_bytes(k));
  random_strip(GetParam(), random, w.data(), k);
  Buffer<float> x(k), out(n), row(k);
  random.fill(x.data(), k);
  const uint32_t group = GetParam() == Packing::kTileQ4 ? kScaleBlocks : 1, inputs = group * kBlock;
  Acts acts(1, k, group);
  quantize_all(kReferenceKernels, x.data(), nullptr, nullptr, acts.acts);
  const PackedMatrix matrix{GetParam(), n, k, w.data()};
  kReferenceKernels.matmul({matrix, &acts.acts, 0, 1, out.data(), n, false, scratch.data()});
  for (uint32_t c = 0; c < n; ++c) {
    gather_row(matrix, c, row.data());
    double exact = 0, bound = 1e-4;
    for (uint32_t i = 0; i < k; ++i) {
      exact += static_cast<double>(x[i]) * row[i];
      float largest = 0;
      for (uint32_t j = i / inputs * inputs; j < std::min(i / inputs * inputs + inputs, k); ++j)
        largest = std::max(largest, std::fabs(x[j]));
      bound += (std::fabs(row[i]) + (group > 1 ? 0.02 : 0)) * largest / 254;
    }
    EXPECT_NEAR(out[c], exact, bound);
  }
}

TEST(Kernels, VectorFunctionsAreTheReferencesToTheBit) {
  Random random(4);
  const KernelSet& ref = kReferenceKernels;
  for (const KernelSet* set : fast_sets()) {
    for (uint32_t n : {1u, 7u, 16u, 17u, 33u, 64u, 576u, 1001u}) {
      Buffer<float> x(n), y(n), w(n), a(n), b(n);
      auto both = [&](auto call) {
        std::memcpy(a.data(), y.data(), n * 4), std::memcpy(b.data(), y.data(), n * 4);
        call(ref, a.data()), call(*set, b.data());
        EXPECT_EQ(0, std::memcmp(a.data(), b.data(), n * 4)) << set->name << " n " << n;
      };
      random.fill(x.data(), n, 3.0f), random.fill(y.data(), n, 20.0f), random.fill(w.data(), n);
      y[0] = -200.0f, y[n / 2] = 150.0f;
      EXPECT_EQ(ref.rms_scale(x.data(), n, 1e-5f), set->rms_scale(x.data(), n, 1e-5f)) << set->name << " n " << n;
      both([&](const KernelSet& k, float* out) { k.scale_mul(out, x.data(), 0.7f, w.data(), n); });
      both([&](const KernelSet& k, float* out) { k.scale_mul_add(out, x.data(), 0.7f, w.data(), n); });
      both([&](const KernelSet& k, float* out) { k.add(out, x.data(), n); });
      both([&](const KernelSet& k, float* out) { k.silu_gate(out, x.data(), n); });
      both([&](const KernelSet& k, float* out) { k.gelu_gate(out, x.data(), n); });
      both([&](const KernelSet& k, float* out) { k.soft_cap(out, 30.0f, n); });
      if (n % 2 == 0) both([&](const KernelSet& k, float* out) { k.rotate(out, x.data(), w.data(), n / 2, 0.3f); });
      both([&](const KernelSet& k, float* out) { k.scale_by(out, x.data(), -0.7f, n); });
    }
  }
}

// exp, silu and gelu of the reference against the C library.
TEST(Kernels, ReferenceFunctionsAreAccurate) {
  for (float x = -30.0f; x < 30.0f; x += 0.01f) {
    float silu = x, gelu = x, capped = x;
    const float one = 1.0f;
    kReferenceKernels.silu_gate(&silu, &one, 1);
    kReferenceKernels.gelu_gate(&gelu, &one, 1);
    kReferenceKernels.soft_cap(&capped, 5.0f, 1);
    const double d = x;
    EXPECT_NEAR(silu, d / (1 + std::exp(-d)), 1e-6 * (1 + std::fabs(d)));
    EXPECT_NEAR(gelu, 0.5 * d * (1 + std::tanh(std::sqrt(2 / M_PI) * (d + 0.044715 * d * d * d))),
                1e-6 * (1 + std::fabs(d)));
    EXPECT_NEAR(capped, 5 * std::tanh(d / 5), 2e-6);
  }
}

// A pool of blocks filled with random keys and values through store_kv.
struct Cache {
  uint32_t head_dim, block_tokens, n_tokens;
  KvType type;
  size_t stride;
  Buffer<std::byte> memory;
  std::vector<uint32_t> table;
  Cache(Random& random, const KernelSet& set, uint32_t dim, uint32_t tokens_per_block, uint32_t n, KvType kv_type)
      : head_dim(dim),
        block_tokens(tokens_per_block),
        n_tokens(n),
        type(kv_type),
        stride((size_t{2} * dim * (kv_type == KvType::kQ8 ? 1 : 2) + (kv_type == KvType::kQ8 ? 8 : 0)) *
               tokens_per_block),
        memory((n / tokens_per_block + 1) * stride) {
    const uint32_t blocks = n / tokens_per_block + 1;
    for (uint32_t i = 0; i < blocks; ++i) table.push_back(blocks - 1 - i);
    std::vector<float> k(dim), v(dim);
    for (uint32_t t = 0; t < n; ++t) {
      random.fill(k.data(), dim), random.fill(v.data(), dim);
      if (t == 3) k[0] = 1e6f, v[1] = -1e6f, k[2] = 1e-7f;
      set.store_kv({k.data(), v.data(), memory.data() + table[t / tokens_per_block] * stride, t % tokens_per_block,
                    tokens_per_block, dim, kv_type});
    }
  }
};

TEST(Kernels, AttentionIsTheReferencesToTheBit) {
  for (const KernelSet* set : fast_sets()) {
    Random random(5);
    const KernelSet& twin = twin_of(*set);
    for (uint32_t trial = 0; trial < 240; ++trial) {
      const uint32_t dim = random.below(12) == 0 ? 256 : 16 * (1 + random.below(8)), tokens = 16u << random.below(4),
                     n = 1 + random.below(300);
      const auto type = static_cast<KvType>(1 + random.below(3));
      const uint64_t seed = trial + 100;
      Random for_ref(seed), for_set(seed);
      Cache expected_cache(for_ref, twin, dim, tokens, n, type), cache(for_set, *set, dim, tokens, n, type);
      ASSERT_EQ(0, std::memcmp(expected_cache.memory.data(), cache.memory.data(), cache.memory.size()))
          << set->name << ": stored keys and values";
      AttentionJob job;
      Buffer<std::byte> queries(attention_scratch_bytes(dim));
      job.prepared = queries.data();
      job.kv = cache.memory.data(), job.block_stride = cache.stride, job.block_table = cache.table.data();
      job.block_tokens = tokens, job.head_dim = dim, job.type = type,
      job.soft_cap = random.below(3) == 0 ? 10.0f : 0.0f;
      job.n_rows = 1 + random.below(kAttentionRows);
      Buffer<float> q(kAttentionRows * dim), a(kAttentionRows * dim), b(kAttentionRows * dim), c(kAttentionRows * dim),
          d(kAttentionRows * dim), e(kAttentionRows * dim);
      random.fill(q.data(), kAttentionRows * dim, 0.3f);
      for (uint32_t r = 0; r < job.n_rows; ++r) {
        job.q[r] = q.data() + r * dim;
        job.key_end[r] = 1 + random.below(n);
        job.key_begin[r] = random.below(2) ? 0 : random.below(job.key_end[r]);
      }
      AttentionPartial ref_total{{}, {}, a.data()}, ref_block{{}, {}, b.data()}, total{{}, {}, c.data()},
          block{{}, {}, d.data()}, at_once{{}, {}, e.data()};
      for (uint32_t r = 0; r < kAttentionRows; ++r)
        ref_total.max[r] = total.max[r] = at_once.max[r] = -std::numeric_limits<float>::infinity();
      if (set->prepare_queries) set->prepare_queries(job);
      for (uint32_t key_block = 0; key_block * kKeyBlock < n; ++key_block) {
        twin.attend_block(job, key_block, ref_block);
        set->attend_block(job, key_block, block);
        twin.merge_partial(ref_total, ref_block, job.n_rows, dim);
        set->merge_partial(total, block, job.n_rows, dim);
        if (set->attend_more && type == KvType::kQ8) set->attend_more(job, key_block, at_once);
      }
      EXPECT_EQ(0, std::memcmp(a.data(), c.data(), size_t{job.n_rows} * dim * 4))
          << set->name << " dim " << dim << " rows " << job.n_rows;
      EXPECT_EQ(0, std::memcmp(ref_total.sum, total.sum, job.n_rows * 4)) << set->name;
      EXPECT_EQ(0, std::memcmp(ref_total.max, total.max, job.n_rows * 4)) << set->name;
      if (!set->attend_more || type != KvType::kQ8) continue;
      EXPECT_EQ(0, std::memcmp(a.data(), e.data(), size_t{job.n_rows} * dim * 4)) << set->name << ", at once";
      EXPECT_EQ(0, std::memcmp(ref_total.sum, at_once.sum, job.n_rows * 4)) << set->name;
      EXPECT_EQ(0, std::memcmp(ref_total.max, at_once.max, job.n_rows * 4)) << set->name;
    }
  }
}

// One row's attention over keys [4, 300) of a cache filled from one seed, divided by its sum.
std::vector<float> attend_all(const KernelSet& set, KvType type, uint32_t dim) {
  Random random(6);
  const uint32_t n = 300;
  Cache cache(random, kReferenceKernels, dim, 32, n, type);
  AttentionJob job;
  job.kv = cache.memory.data(), job.block_stride = cache.stride, job.block_table = cache.table.data(),
  job.block_tokens = 32, job.head_dim = dim, job.type = type, job.n_rows = 1;
  Buffer<float> q(dim), a(dim), b(dim);
  random.fill(q.data(), dim, 0.3f);
  job.q[0] = q.data(), job.key_begin[0] = 4, job.key_end[0] = n;
  AttentionPartial total{{}, {}, a.data()}, block{{}, {}, b.data()};
  total.max[0] = -std::numeric_limits<float>::infinity();
  for (uint32_t i = 0; i * kKeyBlock < n; ++i) {
    set.attend_block(job, i, block);
    kReferenceKernels.merge_partial(total, block, 1, dim);
  }
  std::vector<float> out(dim);
  if (type == KvType::kQ8) kReferenceKernels.turn(total.acc, dim, total.acc);
  for (uint32_t d = 0; d < dim; ++d) out[d] = a[d] / total.sum[0];
  return out;
}

// Half precision against f32 on the same keys: sums of 32 products and of 64 weighted values lose about 2^-11 each.
TEST(Kernels, HalfPrecisionAttentionIsClose) {
  const auto exact = attend_all(kReferenceKernels, KvType::kF16, 64),
             half = attend_all(reference_fp16_kernels(), KvType::kF16, 64);
  for (uint32_t i = 0; i < 64; ++i) EXPECT_NEAR(exact[i], half[i], 0.004);
}

// 8 bits: a key, a query, a weight and a value are each off by up to a 254th of their largest.
TEST(Kernels, EightBitAttentionIsClose) {
  for (uint32_t dim : {16u, 64u, 96u, 256u}) {
    const auto exact = attend_all(kReferenceKernels, KvType::kF16, dim),
               codes = attend_all(kReferenceKernels, KvType::kQ8, dim);
    double difference = 0, size = 0;
    for (uint32_t i = 0; i < dim; ++i)
      difference += (exact[i] - codes[i]) * (exact[i] - codes[i]), size += exact[i] * exact[i];
    EXPECT_LT(std::sqrt(difference / size), 0.05) << dim;
    EXPECT_NE(exact, codes);
  }
}

TEST(Kernels, HalfConversionsRoundTripAndRoundToEven) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const uint32_t magnitude = h & 0x7fff;
    if (magnitude >= 0x7c00) continue;  // infinities saturate
    EXPECT_EQ(float_to_half(half_to_float(h)), h);
    EXPECT_EQ(float_to_bf16(bf16_to_float(h)), h);
  }
  EXPECT_EQ(float_to_half(1e9f), 0x7bffu);
  EXPECT_EQ(float_to_half(1.0f + 1.0f / 2048), 0x3c00u);  // halfway: to even
  EXPECT_EQ(float_to_half(1.0f + 3.0f / 2048), 0x3c02u);
}

}  // namespace
}  // namespace tie::bones
