#include "inference/engine/logit_math.h"

#include <cmath>
#include <cstring>
#include <limits>

// GNU vector types of 16 lanes: the compiler splits them for narrower sets. Each function is compiled once per
// instruction set and chosen at start.
#if defined(__clang__)
#define TIE_VECTORIZE
#else
#define TIE_VECTORIZE optimize("O3")
#endif
#if defined(__x86_64__) && !defined(TIE_SANITIZED)
#define TIE_EACH_SET __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), TIE_VECTORIZE))
#else
#define TIE_EACH_SET __attribute__((TIE_VECTORIZE))
#endif

namespace tie::engine {
namespace {
constexpr size_t kLanes = 16;
using Floats = float __attribute__((vector_size(kLanes * sizeof(float)), aligned(4), may_alias));
using Ints = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t)), aligned(4), may_alias));
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
}  // namespace

TIE_EACH_SET float max_of(std::span<const float> row) {
  Floats best = Floats{} + kMinusInfinity, second = best;
  size_t i = 0;
  for (; i + 2 * kLanes <= row.size(); i += 2 * kLanes) {
    Floats a = *reinterpret_cast<const Floats*>(&row[i]), b = *reinterpret_cast<const Floats*>(&row[i + kLanes]);
    best = a > best ? a : best;
    second = b > second ? b : second;
  }
  best = second > best ? second : best;
  float result = kMinusInfinity;
  for (size_t lane = 0; lane < kLanes; ++lane) result = best[lane] > result ? best[lane] : result;
  for (; i < row.size(); ++i) result = row[i] > result ? row[i] : result;
  return result;
}

TIE_EACH_SET int32_t argmax_of(std::span<const float> row) {
  float best = max_of(row);
  if (best == kMinusInfinity) return -1;
  size_t i = 0;
  for (; i + kGroup <= row.size(); i += kGroup) {
    const float* x = &row[i];
    int hit = 0;
    for (size_t j = 0; j < kGroup; ++j) hit |= static_cast<int>(x[j] == best);
    if (hit) break;
  }
  for (; i < row.size(); ++i)
    if (row[i] == best) return static_cast<int32_t>(i);
  return -1;
}

TIE_EACH_SET void group_maxima(std::span<const float> row, std::vector<float>& out) {
  out.clear();
  size_t i = 0;
  for (; i + kGroup <= row.size(); i += kGroup) {
    const auto* x = reinterpret_cast<const Floats*>(&row[i]);
    Floats a = x[0] > x[1] ? x[0] : x[1], b = x[2] > x[3] ? x[2] : x[3];
    a = a > b ? a : b;
    float best = kMinusInfinity;
    for (size_t lane = 0; lane < kLanes; ++lane) best = a[lane] > best ? a[lane] : best;
    out.push_back(best);
  }
  if (i < row.size()) out.push_back(max_of(row.subspan(i)));
}

TIE_EACH_SET size_t collect_between(std::span<const float> row, size_t from, float low, float high, size_t most,
                                    std::vector<Candidate>& out) {
  size_t i = from;
  while (i < row.size()) {
    size_t end = i + kGroup < row.size() ? i + kGroup : row.size();
    if (end - i == kGroup) {
      const float* x = &row[i];
      int hit = 0;
      for (size_t j = 0; j < kGroup; ++j) hit |= static_cast<int>(x[j] > low) & static_cast<int>(x[j] <= high);
      if (hit == 0) {
        i = end;
        continue;
      }
    }
    if (out.size() + kGroup > most) return i;
    for (; i < end; ++i)
      if (row[i] > low && row[i] <= high) out.push_back({row[i], static_cast<int32_t>(i)});
  }
  return row.size();
}

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

TIE_EACH_SET void apply_mask(std::span<float> row, std::span<const uint32_t> mask) {
  for (size_t word = 0; word * 32 < row.size(); ++word) {
    uint32_t bits = word < mask.size() ? mask[word] : 0;
    if (bits == ~0u) continue;
    size_t end = word * 32 + 32 < row.size() ? word * 32 + 32 : row.size();
    for (size_t i = word * 32; i < end; ++i) row[i] = (bits >> (i & 31) & 1) ? row[i] : kMinusInfinity;
  }
}

}  // namespace tie::engine
