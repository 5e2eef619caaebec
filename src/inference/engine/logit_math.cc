#include "inference/engine/logit_math.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "inference/bones/ops/each_set.h"

namespace tie::engine {
namespace {
constexpr size_t kLanes = 16;
using Floats = float __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));
using Ints = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t)), aligned(4), may_alias));
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
}  // namespace

// exp by 2^n times a polynomial of degree 6 on [-ln2/2, ln2/2] (relative error below 2e-7), n added to the exponent
// bits.
TIE_EACH_SET double exponentials(std::span<const float> row, float max, float scale, float* out, double* block_sums) {
  double total = 0;
  for (size_t start = 0, block = 0; start < row.size(); start += kSumBlock, ++block) {
    size_t end = start + kSumBlock < row.size() ? start + kSumBlock : row.size();
    Floats sum = {};
    for (size_t i = start; i < end; i += kLanes) {
      alignas(64) float tail[kLanes];
      const float* from = &row[i];
      float* to = out + i;
      if (i + kLanes > end) [[unlikely]] {
        for (size_t lane = 0; lane < kLanes; ++lane) tail[lane] = i + lane < end ? row[i + lane] : kMinusInfinity;
        from = tail;
      }
      Floats x = (*reinterpret_cast<const Floats*>(from) - max) * scale;
      Ints alive = x > Floats{} - 87.0f;
      x = alive ? x : Floats{} - 87.0f;
      Floats shifted = x * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
      Floats n = shifted - 12582912.0f;
      Floats r = x - n * 0.693359375f - n * -2.12194440e-4f;
      Floats p = Floats{} + 1.3888889e-3f;
      p = p * r + 8.3333333e-3f;
      p = p * r + 4.1666667e-2f;
      p = p * r + 1.6666667e-1f;
      p = p * r + 0.5f;
      p = p * r + 1.0f;
      p = p * r + 1.0f;
      Ints bits;
      std::memcpy(&bits, &p, sizeof bits);
      bits += __builtin_convertvector(n, Ints) << 23;
      Floats e;
      std::memcpy(&e, &bits, sizeof e);
      e = alive ? e : Floats{};
      sum += e;
      if (i + kLanes > end) [[unlikely]] {
        for (size_t lane = 0; i + lane < end; ++lane) to[lane] = e[lane];
      } else {
        *reinterpret_cast<Floats*>(to) = e;
      }
    }
    double block_sum = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) block_sum += sum[lane];
    block_sums[block] = block_sum;
    total += block_sum;
  }
  return total;
}

TIE_EACH_SET double mass_above(std::span<const float> row, const float* masses, float threshold) {
  double total = 0;
  for (size_t start = 0; start < row.size(); start += kSumBlock) {
    size_t end = start + kSumBlock < row.size() ? start + kSumBlock : row.size(), i = start;
    Floats sum = {};
    for (; i + kLanes <= end; i += kLanes) {
      Ints above = *reinterpret_cast<const Floats*>(&row[i]) > Floats{} + threshold;
      sum += above ? *reinterpret_cast<const Floats*>(masses + i) : Floats{};
    }
    for (; i < end; ++i) total += row[i] > threshold ? masses[i] : 0.0f;
    for (size_t lane = 0; lane < kLanes; ++lane) total += sum[lane];
  }
  return total;
}

TIE_EACH_SET void masses_above(std::span<const float> row, const float* masses, const float (&thresholds)[kThresholds],
                               double (&totals)[kThresholds]) {
  for (double& total : totals) total = 0;
  for (size_t start = 0; start < row.size(); start += kSumBlock) {
    size_t end = start + kSumBlock < row.size() ? start + kSumBlock : row.size(), i = start;
    Floats sums[kThresholds] = {};
    for (; i + kLanes <= end; i += kLanes) {
      Floats x = *reinterpret_cast<const Floats*>(&row[i]), mass = *reinterpret_cast<const Floats*>(masses + i);
      for (size_t t = 0; t < kThresholds; ++t) {
        Ints above = x > Floats{} + thresholds[t];
        sums[t] += above ? mass : Floats{};
      }
    }
    for (size_t t = 0; t < kThresholds; ++t) {
      for (size_t j = i; j < end; ++j) totals[t] += row[j] > thresholds[t] ? masses[j] : 0.0f;
      for (size_t lane = 0; lane < kLanes; ++lane) totals[t] += sums[t][lane];
    }
  }
}

TIE_EACH_SET double keep_from(std::span<const float> row, float threshold, float* masses, double* block_sums) {
  double total = 0;
  for (size_t start = 0, block = 0; start < row.size(); start += kSumBlock, ++block) {
    size_t end = start + kSumBlock < row.size() ? start + kSumBlock : row.size(), i = start;
    Floats sum = {};
    for (; i + kLanes <= end; i += kLanes) {
      auto& mass = *reinterpret_cast<Floats*>(masses + i);
      Ints keep = *reinterpret_cast<const Floats*>(&row[i]) >= Floats{} + threshold;
      mass = keep ? mass : Floats{};
      sum += mass;
    }
    double block_sum = 0;
    for (; i < end; ++i) {
      if (!(row[i] >= threshold)) masses[i] = 0.0f;
      block_sum += masses[i];
    }
    for (size_t lane = 0; lane < kLanes; ++lane) block_sum += sum[lane];
    block_sums[block] = block_sum;
    total += block_sum;
  }
  return total;
}

float log_sum_exp(std::span<const float> row, float* scratch, double* block_sums) {
  float max = max_of(row);
  if (!std::isfinite(max)) return max;
  return max + static_cast<float>(std::log(exponentials(row, max, 1.0f, scratch, block_sums)));
}

}  // namespace tie::engine
