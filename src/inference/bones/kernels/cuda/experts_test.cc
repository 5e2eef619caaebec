// The kernels of a mixture of experts on the emulator: choice, groups, grouped products, the weighted sum.
#include "inference/bones/kernels/cuda/experts.h"

#include <algorithm>
#include <numeric>

#include "inference/bones/kernels/cuda/kernel_test_support.h"

namespace tie::bones::cuda {
namespace {

TEST(CudaExperts, ARowsExpertsAreTheLikeliestOfEqualsTheFirst) {
  for (auto [rows, n_experts, used, normalise] :
       {std::tuple{3u, 8u, 2u, 1u}, {2u, 200u, 8u, 0u}, {1u, 1u, 1u, 1u}, {2u, 5u, 5u, 1u}}) {
    const uint32_t stride = n_experts + 3;
    std::mt19937 random(n_experts);
    std::vector<float> logits(size_t{rows} * stride);
    for (float& v : logits) v = static_cast<float>(random() % 9) / 3;  // with equals
    std::vector<uint32_t> chosen(size_t{rows} * used);
    std::vector<float> weight(size_t{rows} * used);
    for (int which = 0; which < 2; ++which) {
      auto go = [&](uint64_t seed) {
        run("tie_route", RouteArgs{logits.data(), chosen.data(), weight.data(), n_experts, stride, used, normalise},
            {rows}, kRouteSharedBytes, seed);
      };
      which == 0 ? run_in_orders(chosen, go) : run_in_orders(weight, go);
    }
    for (uint32_t row = 0; row < rows; ++row) {
      const float* l = &logits[size_t{row} * stride];
      std::vector<uint32_t> order(n_experts);
      std::iota(order.begin(), order.end(), 0u);
      std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return l[a] > l[b]; });
      double total = 0, of_chosen = 0;
      for (uint32_t e = 0; e < n_experts; ++e) total += std::exp(double{l[e]});
      for (uint32_t j = 0; j < used; ++j) of_chosen += std::exp(double{l[order[j]]}) / total;
      for (uint32_t j = 0; j < used; ++j) {
        ASSERT_EQ(chosen[row * used + j], order[j]);
        ASSERT_NEAR(weight[row * used + j], std::exp(double{l[order[j]]}) / total / (normalise ? of_chosen : 1.0),
                    1e-6);
      }
    }
  }
}

// Pairs of a random choice, grouped by the kernel.
struct Grouped {
  uint32_t rows, used, n_experts, max_tiles;
  std::vector<uint32_t> chosen, slot, slot_row;
  std::vector<ExpertTile> tiles;

  Grouped(uint32_t rows, uint32_t used, uint32_t n_experts, uint32_t popular)
      : rows(rows), used(used), n_experts(n_experts), max_tiles(most_expert_tiles(rows * used, n_experts)) {
    std::mt19937 random(rows);
    for (uint32_t i = 0; i < rows; ++i) {  // different experts of a row; most rows ask for `popular`
      std::vector<uint32_t> all(n_experts);
      std::iota(all.begin(), all.end(), 0u);
      std::shuffle(all.begin(), all.end(), random);
      if (i % 8 != 0) std::swap(all[0], *std::find(all.begin(), all.end(), popular));
      chosen.insert(chosen.end(), all.begin(), all.begin() + used);
    }
    slot.resize(chosen.size());
    slot_row.resize(chosen.size());
    tiles.assign(max_tiles, {99, 99, 99});
    auto go = [&](uint64_t seed) {
      run("tie_group_experts",
          GroupArgs{chosen.data(), slot.data(), slot_row.data(), tiles.data(), rows * used, used, n_experts, max_tiles},
          {1}, kGroupSharedBytes, seed);
    };
    run_in_orders(slot, go);
    run_in_orders(tiles, go);
  }
};

TEST(CudaExperts, PairsAreGroupedByExpertInTheOrderOfRows) {
  for (auto [rows, used, n_experts] : {std::tuple{150u, 2u, 5u}, {9u, 4u, 300u}, {5u, 1u, 1u}}) {
    const Grouped g(rows, used, n_experts, n_experts / 2);
    std::vector<uint32_t> seen(rows * used);
    uint32_t covered = 0;
    for (const ExpertTile& tile : g.tiles) {
      ASSERT_LE(tile.rows, kGemmTile);
      for (uint32_t i = 0; i < tile.rows; ++i, ++covered) {
        const uint32_t at = tile.first + i;
        ASSERT_EQ(at, covered) << "slots are covered once, in order";
        const auto pair = static_cast<uint32_t>(std::find(g.slot.begin(), g.slot.end(), at) - g.slot.begin());
        ASSERT_LT(pair, rows * used);
        ASSERT_EQ(g.chosen[pair], tile.expert);
        ASSERT_EQ(g.slot_row[at], pair / used);
        ASSERT_TRUE(i == 0 || g.slot_row[at - 1] < g.slot_row[at]);
        ++seen[at];
      }
    }
    EXPECT_EQ(covered, rows * used);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1u), rows * used);
  }
}

// As in cuda_kernels_test.cc; products of Gaussians stray further than their mean size says.
TEST(CudaExperts, EachGroupIsMultipliedByItsExpert) {
  const uint32_t n = 19, n_experts = 4, k = 256, used = 2, rows = 70;
  for (TensorType type : {TensorType::kF32, TensorType::kBF16, TensorType::kQ8_0, TensorType::kQ4_1, TensorType::kQ5_0,
                          TensorType::kQ6_K}) {
    const TestMatrix m = test_matrix(type, n * n_experts, k);
    const Grouped g(rows, used, n_experts, 2);
    const auto x = random_floats(size_t{rows} * k, 5);
    std::vector<uint16_t> narrow(x.size());
    std::vector<float> rounded(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      narrow[i] = static_cast<uint16_t>(bf16_bits(x[i]));
      rounded[i] = bf16_value(narrow[i]);
    }
    std::vector<float> y(size_t{rows} * used * n), pair_y(size_t{rows} * used * n);
    run_in_orders(y, [&](uint64_t seed) {
      run("tie_gemm_expert" + suffix(m.format),
          ExpertGemmArgs{
              .product = {.w = m.matrix, .x = narrow.data(), .x_row = g.slot_row.data(), .y = y.data(), .y_stride = n},
              .tiles = g.tiles.data(),
              .n = n},
          {1, g.max_tiles}, kGemmSharedBytes, seed);
    });
    run_in_orders(pair_y, [&](uint64_t seed) {
      run("tie_gemv_expert" + suffix(m.format),
          ExpertGemvArgs{
              .product = {.w = m.matrix, .x = rounded.data(), .y = pair_y.data(), .x_stride = k, .y_stride = n},
              .chosen = g.chosen.data(),
              .n = n,
              .pairs_of_row = used},
          {gemv_blocks(n, false), rows * used}, kGemvSharedBytes, seed);
    });
    for (uint32_t pair = 0; pair < rows * used; ++pair)
      for (uint32_t i = 0; i < n; ++i) {
        const uint32_t output = g.chosen[pair] * n + i;
        const float* row = &rounded[size_t{pair / used} * k];
        const double expected = dot(m, output, row), size = magnitude(m, output, row);
        ASSERT_NEAR(y[size_t{g.slot[pair]} * n + i], expected, 10 * size / 512 / std::sqrt(double{k}) + 1e-6);
        ASSERT_NEAR(pair_y[size_t{pair} * n + i], expected, 4e-6 * (size + 1));
      }
  }
}

TEST(CudaExperts, OutputsAreAddedInTheOrderOfChoice) {
  const uint32_t n = 200, used = 3, rows = 2;
  const auto outputs = random_floats(rows * used * n, 1), weight = random_floats(rows * used, 2),
             start = random_floats(rows * n, 3);
  const std::vector<uint32_t> slot{4, 0, 3, 5, 1, 2};
  for (const uint32_t* slots : {slot.data(), static_cast<const uint32_t*>(nullptr)}) {
    std::vector<float> x = start;
    run_in_orders(x, [&](uint64_t seed) {
      run("tie_combine_experts", CombineArgs{x.data(), outputs.data(), weight.data(), slots, n, used}, {rows}, 0, seed);
    });
    for (uint32_t row = 0; row < rows; ++row)
      for (uint32_t i = 0; i < n; ++i) {
        float expected = start[row * n + i];
        for (uint32_t j = 0; j < used; ++j) {
          const uint32_t at = slots ? slots[row * used + j] : row * used + j;
          expected += weight[row * used + j] * outputs[at * n + i];
        }
        ASSERT_NEAR(x[row * n + i], expected, 1e-5);
      }
  }
}

}  // namespace
}  // namespace tie::bones::cuda
