// The reference set with attention in half precision: the twin of avx512fp16, one number at a time. Named
// "reference_fp16".
#include <algorithm>
#include <cmath>
#include <limits>

#include "inference/bones/kernels/kernel_set.h"
#include "inference/bones/kernels/reference/math.h"

namespace tie::bones {
namespace {

using reference::fold_lanes;

// A double rounded to the nearest half (even on ties), as a double.
double to_half(double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int exponent = std::max(std::ilogb(x), -14);
  const double unit = std::ldexp(1.0, exponent - 10), rounded = std::nearbyint(x / unit) * unit;
  return std::fabs(rounded) > 65504 ? std::copysign(std::numeric_limits<double>::infinity(), x) : rounded;
}
// One half-precision fused multiply-add: exact in double, then rounded once.
double half_fma(double a, double b, double c) {
  return to_half(a * b + c);
}

double half_at(const std::byte* p) {
  return half_to_float(load_u16(p));
}

const std::byte* block_of(const AttentionJob& job, uint32_t key) {
  return job.kv + size_t{job.block_table[key / job.block_tokens]} * job.block_stride;
}

float exp2_rough(float x) {
  if (std::isinf(x)) return 0.0f;
  const float n = std::nearbyint(x), f = x - n;
  float p = 9.6181291e-3f;
  p = std::fma(p, f, 5.5504109e-2f);
  p = std::fma(p, f, 2.4022651e-1f);
  p = std::fma(p, f, 6.9314718e-1f);
  p = std::fma(p, f, 1.0f);
  return n < -126 ? 0.0f : std::ldexp(p, static_cast<int>(n));
}

float soft_capped(float s, float cap) {
  const float e = exp2_rough(std::fabs(s / cap) * (-2.0f * 1.44269504f));
  return std::copysign((1.0f - e) / (1.0f + e), s) * cap;
}

float score(const AttentionJob& job, uint32_t r, uint32_t key) {
  const uint32_t slot = key % job.block_tokens;
  const std::byte* k = block_of(job, key) + size_t{slot / 16} * job.head_dim * 32 + 4 * (slot % 16);
  float total = 0.0f;
  for (uint32_t from = 0; from < job.head_dim; from += 64) {
    double even = 0, odd = 0;
    for (uint32_t d = from; d < std::min(from + 64, job.head_dim); d += 2) {
      even = half_fma(half_to_float(float_to_half(job.q[r][d])), half_at(k + 32 * size_t{d}), even);
      odd = half_fma(half_to_float(float_to_half(job.q[r][d + 1])), half_at(k + 32 * size_t{d} + 2), odd);
    }
    const float part = static_cast<float>(even) + static_cast<float>(odd);
    total = from == 0 ? part : total + part;
  }
  return job.soft_cap > 0.0f ? soft_capped(total, job.soft_cap) : total;
}

// Weighted values of keys [begin, end), summed in halves of at most 64 keys.
void weigh(const AttentionJob& job, uint32_t begin, uint32_t end, const float* weights, float* acc) {
  for (uint32_t d = 0; d < job.head_dim; ++d) {
    double sum = 0;
    for (uint32_t key = begin; key < end; ++key) {
      const std::byte* v = block_of(job, key) + (size_t{job.block_tokens} + key % job.block_tokens) * job.head_dim * 2;
      sum = half_fma(weights[key % kKeyBlock], half_at(v + 2 * d), sum);
    }
    acc[d] = std::fma(static_cast<float>(sum), 64.0f, acc[d]);
  }
}

void attend_block(const AttentionJob& job, uint32_t key_block, AttentionPartial& out) {
  if (job.type != KvType::kF16 || job.head_dim % 32 != 0) return kReferenceKernels.attend_block(job, key_block, out);
  const float infinity = std::numeric_limits<float>::infinity();
  for (uint32_t r = 0; r < job.n_rows; ++r) {
    const uint32_t start = key_block * kKeyBlock, begin = std::max(job.key_begin[r], start),
                   end = std::min(job.key_end[r], start + kKeyBlock);
    float s[kKeyBlock], lanes[16] = {};
    out.max[r] = -infinity;
    for (uint32_t key = begin; key < end; ++key) {
      s[key % kKeyBlock] = score(job, r, key);
      out.max[r] = std::max(out.max[r], s[key % kKeyBlock]);
    }
    for (uint32_t key = begin; key < end; ++key) {
      float& weight = s[key % kKeyBlock];
      const float p =
          exp2_rough(std::fma(weight, 1.44269504f, -std::fma(out.max[r], 1.44269504f, 6.0f)));  // exp(score - max) / 64
      lanes[key % 16] += p;
      weight = half_to_float(float_to_half(p));
    }
    out.sum[r] = fold_lanes(lanes) * 64.0f;
    float* acc = out.acc + size_t{r} * job.head_dim;
    std::fill_n(acc, job.head_dim, 0.0f);
    for (uint32_t from = start; from < start + kKeyBlock; from += 64)
      if (std::max(begin, from) < std::min(end, from + 64))
        weigh(job, std::max(begin, from), std::min(end, from + 64), s, acc);
  }
}

KernelSet with_half_attention() {
  KernelSet set = kReferenceKernels;
  set.name = "reference_fp16";
  set.attend_block = attend_block;
  return set;
}

}  // namespace

const KernelSet& reference_fp16_kernels() {
  static const KernelSet set = with_half_attention();
  return set;
}

}  // namespace tie::bones
