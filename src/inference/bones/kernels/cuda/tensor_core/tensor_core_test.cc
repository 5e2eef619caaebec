// The kernels of Hopper's and Blackwell's units on the emulator, against double precision and against their portable
// twins, over shapes that do not fit their tiles, in several orders of threads.
#include <array>

#include "inference/bones/kernels/cuda/emulator/emulated_tensor_map.h"
#include "inference/bones/kernels/cuda/kernel_test_support.h"
#include "inference/bones/kernels/cuda/tensor_core/tensor_core_list.h"

namespace tie::bones::cuda {
namespace {

TensorMap rows_map(const void* base, uint32_t inputs, uint32_t rows) {
  return emulated_map({.base = reinterpret_cast<uint64_t>(base),
                       .size = {inputs, rows},
                       .stride = {0, uint64_t{inputs} * 2},
                       .box = {kRingInputs, kRingRows},
                       .rank = 2});
}

void check_product(const std::string& kernel, TensorType type, uint32_t n, uint32_t k, uint32_t rows,
                   uint32_t add = 1) {
  const TestMatrix m = test_matrix(type, n, k);
  const auto x = random_floats(size_t{rows} * k, n), start = random_floats(size_t{rows} * n, 2);
  std::vector<uint16_t> narrow(x.size());
  for (size_t i = 0; i < x.size(); ++i) narrow[i] = static_cast<uint16_t>(bf16_bits(x[i]));
  std::vector<float> y = start, twin = start;
  const GemmArgs product{.w = m.matrix, .x = narrow.data(), .y = y.data(), .rows = rows, .y_stride = n, .add = add};
  FastGemmArgs args{.x_map = rows_map(narrow.data(), k, rows), .w_map = {}, .product = product};
  if (m.format == Format::kBf16) args.w_map = rows_map(m.matrix.codes, k, n);
  run_in_orders(y, [&](uint64_t seed) {
    args.product.y = y.data();
    run(kernel + suffix(m.format), args, {(n + 127) / 128, (rows + 127) / 128}, kRingSharedBytes, seed);
  });
  GemmArgs portable = product;
  portable.y = twin.data();
  run("tie_gemm" + suffix(m.format), portable, {(n + 63) / 64, (rows + 63) / 64}, kGemmSharedBytes, 0);
  for (size_t i = 0; i < y.size(); ++i)  // the same bf16 numbers, in another order of additions
    ASSERT_NEAR(y[i], twin[i], 2e-5 * (1 + std::sqrt(static_cast<double>(k)))) << kernel << " " << i;
}

// Few rows, inputs of one block, outputs on both sides of a tile, with and without what was there before.
void check_odd_products(const std::string& kernel) {
  uint32_t i = 0;
  for (uint32_t rows : {2u, 7u, 16u, 17u, 63u, 64u, 65u, 128u, 129u}) {
    const uint32_t n = std::array{1u, 9u, 127u, 128u, 129u}[i % 5], k = std::array{32u, 96u, 288u}[i % 3];
    check_product(kernel, i % 2 ? TensorType::kBF16 : TensorType::kQ4_0, n, k, rows, i / 2 % 2);
    ++i;
  }
}

TEST(TensorCore, OddProductsAreThoseOfTheTwin) {
  check_odd_products("tie_gemm_sm90");
  check_odd_products("tie_gemm_sm100");
}

TEST(TensorCore, ProductsOnHopperAreThoseOfTheTwin) {
  for (TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16, TensorType::kQ8_0, TensorType::kQ4_0,
                          TensorType::kQ5_0, TensorType::kQ6_K})
    check_product("tie_gemm_sm90", type, 70, 256, 40);
  check_product("tie_gemm_sm90", TensorType::kBF16, 131, 640, 130);  // more steps than stages; tiles of one row
  check_product("tie_gemm_sm90", TensorType::kQ8_0, 131, 608, 130);  // half a step at the end
  check_product("tie_gemm_sm90", TensorType::kBF16, 1, 32, 1);
}

TEST(TensorCore, ProductsOnBlackwellAreThoseOfTheTwin) {
  for (TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBF16, TensorType::kQ8_0, TensorType::kQ4_0,
                          TensorType::kQ5_0, TensorType::kQ6_K})
    check_product("tie_gemm_sm100", type, 70, 256, 40);
  check_product("tie_gemm_sm100", TensorType::kBF16, 131, 640, 130);
  check_product("tie_gemm_sm100", TensorType::kQ8_0, 131, 608, 130);
  check_product("tie_gemm_sm100", TensorType::kBF16, 1, 32, 1);
}

// A cache of two layers, of which the second is asked; spans of two sequences.
template <uint32_t kDim>
void check_attention(uint32_t block_tokens, uint32_t n_kv, uint32_t n_heads, uint32_t window, float cap, bool bf16) {
  const uint32_t n_blocks = 24, table_stride = 320 / block_tokens;
  const uint64_t plane_bytes = uint64_t{block_tokens} * kDim * 2, block_bytes = plane_bytes * 2 * 2 * n_kv;
  std::vector<uint16_t> memory;
  for (float f : random_floats(n_blocks * block_bytes / 2, 9))
    memory.push_back(bf16 ? static_cast<uint16_t>(bf16_bits(f)) : half_bits(f));
  std::vector<uint32_t> tables(2 * table_stride, 0xffffffffu);  // never read past a sequence's end
  const std::vector<PrefillSpan> spans{{0, 135, 70, 1}, {135, 3, 0, 0}};
  uint32_t next = 0;
  for (uint32_t i = 0; i < (205 + block_tokens - 1) / block_tokens; ++i)
    tables[table_stride + i] = (7 * ++next) % n_blocks;
  tables[0] = 0;
  const auto q = random_floats(size_t{138} * n_heads * kDim, kDim, 0.3f);
  std::vector<float> out(q.size()), twin(q.size());
  PrefillArgs args{.q = q.data(),
                   .out = out.data(),
                   .spans = spans.data(),
                   .tables = tables.data(),
                   .table_stride = table_stride,
                   .kv = {reinterpret_cast<uint8_t*>(memory.data()), block_bytes, block_bytes / 2, block_tokens, kDim,
                          n_kv, bf16 ? KvElement::kBf16 : KvElement::kF16},
                   .n_heads = n_heads,
                   .window = window,
                   .soft_cap = cap};
  FastPrefillArgs fast{.kv_map = emulated_map({.base = reinterpret_cast<uint64_t>(memory.data()),
                                               .size = {kDim, block_tokens, 4 * n_kv, n_blocks},
                                               .stride = {0, kDim * 2, plane_bytes, block_bytes},
                                               .box = {64, attend90_box_tokens(block_tokens), 1, 1},
                                               .rank = 4}),
                       .attention = args,
                       .first_plane = 2 * n_kv};
  run_in_orders(out, [&](uint64_t seed) {
    fast.attention.out = out.data();
    run("tie_attention_sm90_" + std::to_string(kDim), fast, {2, n_heads, 2}, Attend90<kDim>::kSharedBytes, seed);
  });
  args.out = twin.data();
  run("tie_prefill_attention_" + std::to_string(kDim), args, {3, n_heads, 2}, kPrefillSharedBytes<kDim>, 0);
  for (size_t i = 0; i < out.size(); ++i)  // the twin rounds f16 keys and values to bf16
    ASSERT_NEAR(out[i], twin[i], 0.03) << i / kDim / n_heads << " " << i % kDim;
}

TEST(TensorCore, AttentionOnHopperIsThatOfTheTwin) {
  check_attention<64>(32, 1, 2, 0, 0.0f, false);
  check_attention<64>(16, 2, 2, 40, 0.0f, true);
  check_attention<128>(32, 1, 1, 0, 5.0f, false);
  check_attention<64>(128, 1, 1, 0, 0.0f, true);
  check_attention<128>(64, 1, 4, 1, 0.0f, true);
  check_attention<64>(32, 1, 3, 129, 30.0f, false);
}

}  // namespace
}  // namespace tie::bones::cuda
