// Every GPU kernel's body on the emulator, against plain double precision, over shapes that do not fit its tiles; each
// in several orders of its threads, which must give the same bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "inference/bones/kernels/cuda/kernel_list.h"
#include "inference/bones/kernels/cuda/kernel_test_support.h"
#include "inference/bones/ops/best_ids.h"

namespace tie::bones::cuda {
namespace {

class Products : public ::testing::TestWithParam<TensorType> {};

// Float sums: each of k additions rounds by 2^-24 of what is being added up; scales times codes round once more.
TEST_P(Products, OfFewRowsAgree) {
  for (auto [n, k, rows] : {std::tuple{1u, 256u, 1u}, {19u, 2304u, 3u}, {33u, 512u, 4u}}) {
    const TestMatrix m = test_matrix(GetParam(), n, k);
    const auto x = random_floats(size_t{rows} * k, n), start = random_floats(size_t{rows} * n, 3);
    std::vector<float> y = start;
    run_in_orders(y, [&](uint64_t seed) {
      run("tie_gemv" + suffix(m.format),
          GemvArgs{.w = m.matrix, .x = x.data(), .y = y.data(), .rows = rows, .x_stride = k, .y_stride = n, .add = 1},
          {gemv_blocks(n, false)}, kGemvSharedBytes, seed);
    });
    for (uint32_t row = 0; row < rows; ++row)
      for (uint32_t i = 0; i < n; ++i)
        ASSERT_NEAR(y[row * n + i], start[row * n + i] + dot(m, i, &x[row * k]),
                    4e-6 * (magnitude(m, i, &x[row * k]) + 1));
  }
}

// bf16 keeps 8 bits: a product of two rounded numbers is off by up to 2^-8 of itself, the errors of a sum add up like a
// random walk.
TEST_P(Products, OfManyRowsAgree) {
  for (auto [n, k, rows] : {std::tuple{1u, 256u, 1u}, {70u, 256u, 67u}, {64u, 512u, 5u}}) {
    const TestMatrix m = test_matrix(GetParam(), n, k);
    const auto x = random_floats(size_t{rows} * k, n);
    std::vector<uint16_t> narrow(x.size());
    std::vector<float> rounded(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      narrow[i] = static_cast<uint16_t>(bf16_bits(x[i]));
      rounded[i] = bf16_value(narrow[i]);
    }
    std::vector<float> y(size_t{rows} * n, 0.0f);
    run_in_orders(y, [&](uint64_t seed) {
      run("tie_gemm" + suffix(m.format),
          GemmArgs{.w = m.matrix, .x = narrow.data(), .y = y.data(), .rows = rows, .y_stride = n},
          {(n + kGemmTile - 1) / kGemmTile, (rows + kGemmTile - 1) / kGemmTile}, kGemmSharedBytes, seed);
    });
    for (uint32_t row = 0; row < rows; ++row)
      for (uint32_t i = 0; i < n; ++i)
        ASSERT_NEAR(y[row * n + i], dot(m, i, &rounded[row * k]),
                    6 * magnitude(m, i, &rounded[row * k]) / 512 / std::sqrt(static_cast<double>(k)) + 1e-6);
  }
}

// Every number of rows up to past a tile of 16, inputs that are one block or end within a tile.
TEST(CudaKernels, ProductsOfAnyFewRowsAgree) {
  for (TensorType type : {TensorType::kBF16, TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ5_0})
    for (uint32_t rows = 1; rows <= 17; ++rows) {
      const uint32_t n = 7 + rows % 3, k = rows % 2 ? 32 : 288;
      const TestMatrix m = test_matrix(type, n, k);
      const auto x = random_floats(size_t{rows} * k, rows), start = random_floats(size_t{rows} * n, 3);
      std::vector<uint16_t> narrow;
      for (float f : x) narrow.push_back(static_cast<uint16_t>(bf16_bits(f)));
      std::vector<float> few = start, many = start;
      run("tie_gemv" + suffix(m.format),
          GemvArgs{.w = m.matrix, .x = x.data(), .y = few.data(), .rows = rows, .x_stride = k, .y_stride = n, .add = 1},
          {gemv_blocks(n, false), (rows + kGemvRows - 1) / kGemvRows}, kGemvSharedBytes, 1);
      run("tie_gemm" + suffix(m.format),
          GemmArgs{.w = m.matrix, .x = narrow.data(), .y = many.data(), .rows = rows, .y_stride = n, .add = 1},
          {1, (rows + kGemmTile - 1) / kGemmTile}, kGemmSharedBytes, 1);
      if (rows == 1) {
        std::vector<float> one = start;
        run("tie_gemv_one" + suffix(m.format),
            GemvArgs{.w = m.matrix, .x = x.data(), .y = one.data(), .rows = 1, .x_stride = k, .y_stride = n, .add = 1},
            {gemv_blocks(n, false)}, kGemvSharedBytes, 1);
        ASSERT_EQ(one, few) << "a row's sum depends on the kernel";
      }
      for (size_t i = 0; i < few.size(); ++i) {
        const float* row = &x[i / n * k];
        const double expected = start[i] + dot(m, i % n, row), size = magnitude(m, i % n, row);
        ASSERT_NEAR(few[i], expected, 4e-6 * (size + 1)) << rows << " " << i;
        ASSERT_NEAR(many[i], expected, size / 128 + 1e-5) << rows << " " << i;
      }
    }
}

TEST_P(Products, RowsOfTheEmbeddingAreTheWeights) {
  const TestMatrix m = test_matrix(GetParam(), 9, 256);
  const std::vector<int32_t> tokens{8, 0, 3, 3};
  std::vector<float> x(4 * 256);
  run_in_orders(x, [&](uint64_t seed) {
    run("tie_embed" + suffix(m.format), EmbedArgs{m.matrix, tokens.data(), x.data(), 2.0f}, {4}, 0, seed);
  });
  for (size_t row = 0; row < 4; ++row)
    for (size_t i = 0; i < 256; ++i)
      ASSERT_NEAR(x[row * 256 + i], 2 * m.w[static_cast<size_t>(tokens[row]) * 256 + i], 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Formats, Products,
                         ::testing::Values(TensorType::kF32, TensorType::kF16, TensorType::kBF16, TensorType::kQ8_0,
                                           TensorType::kQ4_0, TensorType::kQ4_1, TensorType::kQ4_K, TensorType::kQ5_0,
                                           TensorType::kQ5_K, TensorType::kQ6_K));

TEST(CudaKernels, ThreeProductsOfARowAreThoseOfEach) {
  const uint32_t k = 288;
  for (TensorType type : {TensorType::kQ4_0, TensorType::kBF16}) {
    const TestMatrix m[3] = {test_matrix(type, 37, k), test_matrix(type, 16, k), test_matrix(type, 5, k)};
    const auto x = random_floats(k, 1), norm = random_floats(k, 2);
    std::vector<float> all(37 + 16 + 5), each(all.size());
    GemvArgs product{.w = m[0].matrix, .x = x.data(), .norm = norm.data(), .y = each.data(), .rows = 1};
    product.x_stride = k, product.epsilon = 1e-5f;
    uint32_t at = 0;
    for (const TestMatrix& one : m) {
      product.w = one.matrix, product.y = each.data() + at;
      run("tie_gemv_one" + suffix(one.format), product, {gemv_blocks(one.matrix.n, false)}, kGemvSharedBytes, 0);
      at += one.matrix.n;
    }
    product.w = m[0].matrix, product.y = all.data();
    const GemvThreeArgs three{product, m[1].matrix, m[2].matrix, all.data() + 37, all.data() + 53};
    run("tie_gemv_three" + suffix(m[0].format), three, {3 + 1 + 1}, kGemvSharedBytes, 1);
    EXPECT_EQ(all, each);
  }
}

TEST(CudaKernels, AGatedProductNormsItsInputAndActivates) {
  const uint32_t n = 21, k = 512, rows = 2;
  const TestMatrix gate = test_matrix(TensorType::kQ4_0, n, k), up = gate;
  const auto x = random_floats(rows * k, 1), norm = random_floats(k, 2);
  for (Gate kind : {Gate::kSilu, Gate::kGelu}) {
    std::vector<float> y(rows * n);
    run_in_orders(y, [&](uint64_t seed) {
      run("tie_gemv_q4",
          GemvArgs{.w = gate.matrix,
                   .up = up.matrix,
                   .x = x.data(),
                   .norm = norm.data(),
                   .y = y.data(),
                   .rows = rows,
                   .x_stride = k,
                   .y_stride = n,
                   .epsilon = 1e-5f,
                   .gate = kind},
          {gemv_blocks(n, true)}, kGemvSharedBytes, seed);
    });
    for (uint32_t row = 0; row < rows; ++row) {
      double square = 0;
      for (uint32_t i = 0; i < k; ++i) square += double{x[row * k + i]} * x[row * k + i];
      std::vector<float> normed(k);
      for (uint32_t i = 0; i < k; ++i)
        normed[i] = static_cast<float>(x[row * k + i] / std::sqrt(square / k + 1e-5) * norm[i]);
      for (uint32_t i = 0; i < n; ++i) {
        const double g = dot(gate, i, normed.data());
        const double active = kind == Gate::kSilu
                                  ? g / (1 + std::exp(-g))
                                  : 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g)));
        ASSERT_NEAR(y[row * n + i], active * g, 1e-4 * (1 + g * g));
      }
    }
  }
}

TEST(CudaKernels, NormsAndActivationsOfRows) {
  const uint32_t n = 200, rows = 3;
  const auto x = random_floats(rows * n, 4), w = random_floats(n, 5), up = random_floats(rows * n, 6);
  std::vector<uint16_t> out(rows * n);
  run_in_orders(out, [&](uint64_t seed) {
    run("tie_norm_to_bf16", NormArgs{x.data(), w.data(), out.data(), n, 1e-6f}, {rows}, kRowSharedBytes, seed);
  });
  std::vector<float> added = x;
  run_in_orders(added, [&](uint64_t seed) {
    run("tie_add_norm", AddNormArgs{added.data(), up.data(), w.data(), n, 1e-6f}, {rows}, kRowSharedBytes, seed);
  });
  std::vector<uint16_t> active(rows * n);
  run_in_orders(active, [&](uint64_t seed) {
    run("tie_gate_to_bf16", GateArgs{x.data(), up.data(), active.data(), n, Gate::kSilu}, {rows}, kRowSharedBytes,
        seed);
  });
  for (uint32_t row = 0; row < rows; ++row) {
    double square = 0, other = 0;
    for (uint32_t i = 0; i < n; ++i)
      square += double{x[row * n + i]} * x[row * n + i], other += double{up[row * n + i]} * up[row * n + i];
    for (uint32_t i = 0; i < n; ++i) {
      const double v = x[row * n + i], normed = v / std::sqrt(square / n + 1e-6) * w[i];
      ASSERT_NEAR(bf16_value(out[row * n + i]), normed, std::fabs(normed) / 256 + 1e-6);
      ASSERT_NEAR(added[row * n + i], v + up[row * n + i] / std::sqrt(other / n + 1e-6) * w[i], 1e-5);
      const double gate = v / (1 + std::exp(-v)) * up[row * n + i];
      ASSERT_NEAR(bf16_value(active[row * n + i]), gate, std::fabs(gate) / 256 + 1e-6);
    }
  }
}

// A cache of a few blocks with two sequences, filled with random keys and values.
struct Cache {
  uint32_t d, n_kv, tokens = 16, table_stride = 5;
  std::vector<uint16_t> memory;
  std::vector<uint32_t> tables;
  PagedKv kv;

  Cache(uint32_t head_dim, uint32_t kv_heads, KvElement element = KvElement::kF16) : d(head_dim), n_kv(kv_heads) {
    const bool small = element == KvElement::kE4m3;
    const size_t layer = size_t{n_kv} * tokens * (small ? 2 * d + 8 : 4 * d);  // bytes
    memory.resize(layer * 12);
    tables = {7, 3, 11, 0, 5, 2, 9, 4, 1, 8};
    kv = {reinterpret_cast<uint8_t*>(memory.data()), layer * 2, layer, tokens, d, n_kv, element};  // the second layer
    const auto numbers = random_floats(size_t{12} * n_kv * tokens * 2 * d, 9);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const KvVector to = vector_of(i / d);
      if (!small) put_kv_number(kv, to, i % d, numbers[i]);
      if (small) *to.scale = 0.01f, to.at[i % d] = e4m3_bits(numbers[i] * 100);
    }
  }
  KvVector vector_of(size_t index) const {  // of all in the pool
    return kv_vector(kv, static_cast<uint32_t>(index / 2 / tokens / n_kv), index / 2 / tokens % n_kv,
                     index / 2 % tokens, index % 2);
  }
  double at(uint32_t sequence, uint32_t position, uint32_t head, uint32_t value, uint32_t dim) const {
    const uint32_t block = tables[sequence * table_stride + position / tokens];
    return kv_number(kv, kv_vector(kv, block, head, position % tokens, value), dim);
  }
};

std::vector<double> attend(const Cache& cache, const float* q, uint32_t sequence, uint32_t kv_head, uint32_t position,
                           uint32_t window, double cap) {
  const uint32_t begin = window != 0 && position + 1 > window ? position + 1 - window : 0;
  std::vector<double> weights, out(cache.d);
  double total = 0;
  for (uint32_t key = begin; key <= position; ++key) {
    double score = 0;
    for (uint32_t i = 0; i < cache.d; ++i) score += q[i] * cache.at(sequence, key, kv_head, 0, i);
    if (cap > 0) score = cap * std::tanh(score / cap);
    weights.push_back(std::exp(score));
    total += weights.back();
  }
  for (uint32_t key = begin; key <= position; ++key)
    for (uint32_t i = 0; i < cache.d; ++i)
      out[i] += weights[key - begin] / total * cache.at(sequence, key, kv_head, 1, i);
  return out;
}

TEST(CudaKernels, DecodeAttentionSplitsKeysAndMergesThem) {
  for (auto [d, n_kv, n_heads, splits, window, cap, element] : {std::tuple{16u, 2u, 4u, 1u, 0u, 0.0f, KvElement::kF16},
                                                                {64u, 1u, 3u, 3u, 0u, 0.0f, KvElement::kBf16},
                                                                {32u, 2u, 2u, 4u, 20u, 5.0f, KvElement::kF16},
                                                                {32u, 2u, 4u, 2u, 0u, 0.0f, KvElement::kE4m3},
                                                                {80u, 2u, 6u, 5u, 1u, 0.0f, KvElement::kF16},
                                                                {96u, 1u, 4u, 2u, 33u, 0.0f, KvElement::kBf16},
                                                                {128u, 1u, 8u, 3u, 0u, 0.0f, KvElement::kF16},
                                                                {256u, 1u, 16u, 2u, 40u, 30.0f, KvElement::kE4m3}}) {
    const Cache cache(d, n_kv, element);
    const std::vector<uint32_t> positions{70, 0, 33}, sequences{0, 1, 1};
    const auto q = random_floats(size_t{3} * n_heads * d, d, 0.3f);
    std::vector<float> partial(size_t{3} * n_heads * splits * d), state(size_t{3} * n_heads * splits * 2),
        out(size_t{3} * n_heads * d);
    const RowPlaces rows{positions.data(), sequences.data(), cache.tables.data(), cache.table_stride};
    run_in_orders(out, [&](uint64_t seed) {
      run("tie_decode_attention",
          DecodeArgs{q.data(), partial.data(), state.data(), rows, cache.kv, n_heads, splits, window, cap},
          {splits, n_kv, 3}, decode_shared_bytes(n_heads / n_kv, d), seed);
      run("tie_merge_attention", MergeArgs{partial.data(), state.data(), out.data(), n_heads, d, splits}, {n_heads, 3},
          0, seed);
    });
    for (uint32_t row = 0; row < 3; ++row)
      for (uint32_t h = 0; h < n_heads; ++h) {
        const size_t at = (size_t{row} * n_heads + h) * d;
        const auto expected = attend(cache, &q[at], sequences[row], h / (n_heads / n_kv), positions[row], window, cap);
        for (uint32_t i = 0; i < d; ++i) ASSERT_NEAR(out[at + i], expected[i], 2e-5) << row << " " << h << " " << i;
      }
  }
}

// Queries, keys, values and weights are rounded to bf16 on the way: 2^-8 of numbers of about one.
template <uint32_t d>
void check_prefill(uint32_t n_kv, uint32_t n_heads, uint32_t window, float cap, KvElement element) {
  const Cache cache(d, n_kv, element);
  const std::vector<PrefillSpan> spans{{0, 67, 6, 1}, {67, 3, 0, 0}};
  const auto q = random_floats(size_t{70} * n_heads * d, d, 0.3f);
  std::vector<float> out(q.size());
  run_in_orders(out, [&](uint64_t seed) {
    run("tie_prefill_attention_" + std::to_string(d),
        PrefillArgs{q.data(), out.data(), spans.data(), cache.tables.data(), cache.table_stride, cache.kv, n_heads,
                    window, cap},
        {2, n_heads, 2}, kPrefillSharedBytes<d>, seed);
  });
  for (const PrefillSpan& span : spans)
    for (uint32_t r = 0; r < span.n_rows; ++r)
      for (uint32_t h = 0; h < n_heads; ++h) {
        const size_t at = (size_t{span.first_row + r} * n_heads + h) * d;
        const auto expected =
            attend(cache, &q[at], span.sequence, h / (n_heads / n_kv), span.first_position + r, window, cap);
        for (uint32_t i = 0; i < d; ++i) ASSERT_NEAR(out[at + i], expected[i], 0.03) << r << " " << h << " " << i;
      }
}

TEST(CudaKernels, PrefillAttentionAgrees) {
  check_prefill<16>(2, 4, 0, 0.0f, KvElement::kF16);
  check_prefill<64>(1, 2, 0, 5.0f, KvElement::kBf16);
  check_prefill<32>(2, 2, 20, 0.0f, KvElement::kE4m3);
  check_prefill<96>(1, 3, 1, 0.0f, KvElement::kF16);
  check_prefill<128>(2, 8, 33, 0.0f, KvElement::kE4m3);
  check_prefill<256>(1, 2, 7, 30.0f, KvElement::kBf16);
}

void check_heads(KvElement element, double tolerance, uint32_t d = 16, uint32_t rope = 12) {
  const uint32_t n_kv = 2, n_heads = 4, rows = 2;
  Cache cache(d, n_kv, element);
  const std::vector<uint32_t> positions{17, 3}, sequences{1, 0};
  const auto q0 = random_floats(rows * n_heads * d, 1), k = random_floats(rows * n_kv * d, 2),
             v = random_floats(rows * n_kv * d, 3), bias = random_floats(n_heads * d, 4), norm = random_floats(d, 5),
             frequency32 = random_floats(rope / 2, 6);
  const std::vector<double> frequency(frequency32.begin(), frequency32.end());
  std::vector<float> q = q0;
  HeadsArgs args{.q = q.data(),
                 .k = k.data(),
                 .v = v.data(),
                 .q_bias = bias.data(),
                 .k_bias = bias.data(),
                 .v_bias = bias.data(),
                 .q_norm = norm.data(),
                 .k_norm = norm.data(),
                 .frequencies = frequency.data(),
                 .rows = {positions.data(), sequences.data(), cache.tables.data(), cache.table_stride},
                 .kv = cache.kv,
                 .n_heads = n_heads,
                 .rope_dim = rope,
                 .epsilon = 1e-6f,
                 .scale = 0.25f};
  run_in_orders(q, [&](uint64_t seed) {
    args.q = q.data();
    run("tie_finish_heads", args, {n_heads + 2 * n_kv, rows}, kHeadsSharedBytes, seed);
  });
  auto finished = [&](const float* from, uint32_t h, uint32_t row) {
    std::vector<double> x(d);
    double square = 0;
    for (uint32_t i = 0; i < d; ++i) x[i] = double{from[i]} + bias[h * d + i], square += x[i] * x[i];
    for (uint32_t i = 0; i < d; ++i) x[i] *= norm[i] / std::sqrt(square / d + 1e-6);
    for (uint32_t i = 0; i < rope / 2; ++i) {
      const double angle = frequency[i] * positions[row], a = x[i], b = x[i + rope / 2];
      x[i] = a * std::cos(angle) - b * std::sin(angle);
      x[i + rope / 2] = a * std::sin(angle) + b * std::cos(angle);
    }
    return x;
  };
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t h = 0; h < n_heads; ++h) {
      const auto expected = finished(&q0[(row * n_heads + h) * d], h, row);
      for (uint32_t i = 0; i < d; ++i) ASSERT_NEAR(q[(row * n_heads + h) * d + i], 0.25 * expected[i], 1e-4);
    }
    for (uint32_t h = 0; h < n_kv; ++h) {
      const auto expected = finished(&k[(row * n_kv + h) * d], h, row);
      for (uint32_t i = 0; i < d; ++i) {
        ASSERT_NEAR(cache.at(sequences[row], positions[row], h, 0, i), expected[i], tolerance);
        ASSERT_NEAR(cache.at(sequences[row], positions[row], h, 1, i), v[(row * n_kv + h) * d + i] + bias[h * d + i],
                    tolerance);
      }
    }
  }
}

// Numbers of up to about four: half a step of f16 and bf16 is 2^-11 and 2^-8 of a number, of e4m3 2^-4.
TEST(CudaKernels, HeadsAreBiasedNormedRotatedAndStored) {
  check_heads(KvElement::kF16, 2e-3);
  check_heads(KvElement::kBf16, 1.6e-2);
  check_heads(KvElement::kE4m3, 0.25);
  for (uint32_t d : {80u, 96u, 128u, 256u}) check_heads(KvElement::kF16, 4e-3, d, d == 96 ? 48 : d);
  check_heads(KvElement::kE4m3, 0.3, 256, 256);
}

TEST(CudaKernels, AHeadOfZerosIsKeptAsZeros) {
  Cache cache(16, 1, KvElement::kE4m3);
  const uint32_t position = 0, sequence = 0;
  const std::vector<float> zeros(16);
  std::vector<float> q(16);
  const std::vector<double> frequency(8);
  run("tie_finish_heads",
      HeadsArgs{.q = q.data(),
                .k = zeros.data(),
                .v = zeros.data(),
                .frequencies = frequency.data(),
                .rows = {&position, &sequence, cache.tables.data(), cache.table_stride},
                .kv = cache.kv,
                .n_heads = 1},
      {3, 1}, kHeadsSharedBytes, 0);
  for (uint32_t i = 0; i < 16; ++i) EXPECT_EQ(cache.at(0, 0, 0, 0, i), 0.0);
}

TEST(CudaKernels, EightBitNumbersAreTheNearest) {
  for (uint32_t code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;  // NaN
    EXPECT_EQ(e4m3_bits(e4m3_value(static_cast<uint8_t>(code))), code);
  }
  EXPECT_EQ(e4m3_value(0x01), 1.0f / 512);  // the smallest
  EXPECT_EQ(e4m3_value(0x7e), 448.0f);
  EXPECT_EQ(e4m3_value(0xb8), -1.0f);
  EXPECT_EQ(e4m3_bits(1e9f), 0x7e);
  EXPECT_EQ(e4m3_bits(17.0f), e4m3_bits(16.0f)) << "a tie goes to the even code";
  EXPECT_EQ(e4m3_bits(19.0f), e4m3_bits(20.0f));
  for (float f : random_floats(2000, 3, 40.0f)) {
    const double error = std::fabs(double{e4m3_value(e4m3_bits(f))} - f);
    for (uint32_t code = 0; code < 0x7f; ++code)
      ASSERT_LE(error, std::fabs(std::fabs(double{f}) - e4m3_value(static_cast<uint8_t>(code)))) << f;
  }
}

TEST(CudaKernels, BlocksGoOutAndComeBack) {
  Cache cache(16, 1);
  const std::vector<uint16_t> before = cache.memory;
  const std::vector<uint32_t> blocks{7, 0, 3};
  std::vector<uint8_t> records(3 * cache.kv.block_bytes);
  CopyBlocksArgs args{cache.kv.base, records.data(), blocks.data(), cache.kv.block_bytes, 0};
  run_in_orders(records, [&](uint64_t seed) { run("tie_copy_blocks", args, {3}, 0, seed); });
  EXPECT_EQ(std::memcmp(records.data(), cache.kv.base + 7 * cache.kv.block_bytes, cache.kv.block_bytes), 0);
  std::fill(cache.memory.begin(), cache.memory.end(), 0);
  args.to_pool = 1;
  run("tie_copy_blocks", args, {3}, 0, 0);
  const size_t elements = cache.kv.block_bytes / 2;
  for (uint32_t block : {0u, 3u, 7u})
    EXPECT_EQ(std::memcmp(&cache.memory[block * elements], &before[block * elements], cache.kv.block_bytes), 0);
  EXPECT_EQ(cache.memory[elements], 0) << "a block that was not named";
}

TEST(CudaKernels, CapsAndMasksLogits) {
  const uint32_t n = 700, stride = 720;
  std::vector<float> logits(2 * stride);
  std::mt19937 random(11);
  for (float& v : logits) v = static_cast<float>(random() % 50) - 25;  // ties
  logits[3] = NAN;
  std::vector<uint32_t> masks(2 * 22, 0xffffffffu);
  masks[0] = 0xfffffff0u;
  masks[22 + 4] = 0;
  std::vector<float> capped = logits;
  run_in_orders(capped, [&](uint64_t seed) {
    run("tie_finish_logits", FinishLogitsArgs{capped.data(), masks.data(), n, stride, 22, 30.0f}, {(n + 255) / 256, 2},
        0, seed);
  });
  for (uint32_t row = 0; row < 2; ++row)
    for (uint32_t i = 0; i < n; ++i) {
      const bool allowed = row == 0 ? i >= 4 : i / 32 != 4;
      const float v = capped[row * stride + i];
      if (!allowed) {
        ASSERT_EQ(v, -INFINITY);
      } else if (row != 0 || i != 3) {
        ASSERT_NEAR(v, 30 * std::tanh(logits[row * stride + i] / 30), 1e-4);
      }
    }
}

TEST(CudaKernels, FindsTheBestOfEachRow) {
  const uint32_t n = 2 * kTopKRun + 300, stride = n + 20, runs = 3, k = 5;
  std::vector<float> logits(3 * stride);
  std::mt19937 random(12);
  for (float& v : logits) v = static_cast<float>(random() % 500) - 250;  // ties
  logits[3] = NAN;
  const std::vector<uint32_t> below{UINT32_MAX, 1000 + kTopKRun + 2, 0};  // the last row is wanted whole
  std::vector<uint32_t> run_ids(3 * runs * k), ids(3 * k);
  std::vector<float> run_values(run_ids.size()), values(ids.size());
  const TopKArgs args{logits.data(), below.data(), run_ids.data(), run_values.data(), n, stride, 1000, k, runs};
  run_in_orders(run_ids, [&](uint64_t seed) { run("tie_top_k", args, {runs, 3}, kSampleSharedBytes, seed); });
  const MergeTopKArgs merge{run_ids.data(), run_values.data(), ids.data(), values.data(), runs * k, k};
  run_in_orders(ids, [&](uint64_t seed) { run("tie_merge_top_k", merge, {3}, kSampleSharedBytes, seed); });
  for (uint32_t row = 0; row < 2; ++row) {
    const auto seen = std::span(logits).subspan(row * stride, std::min(n, below[row] - 1000));
    TopScratch scratch;
    const auto expected = select_top(seen, k, scratch);
    ASSERT_EQ(expected.size(), k);
    for (uint32_t i = 0; i < k; ++i) {
      EXPECT_EQ(ids[row * k + i], 1000u + static_cast<uint32_t>(expected[i].token));
      EXPECT_EQ(values[row * k + i], expected[i].logit);
    }
  }
  for (uint32_t i = 0; i < k; ++i) EXPECT_EQ(ids[2 * k + i], kNone);
}

}  // namespace
}  // namespace tie::bones::cuda
