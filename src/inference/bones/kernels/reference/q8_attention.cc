// Attention over the 8-bit cache, one number at a time, as q8_cache.h states it. The twin of every set's.
#include "inference/bones/kernels/reference/q8_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "inference/bones/kernels/kernel_set.h"
#include "inference/bones/kernels/q8_cache.h"
#include "inference/bones/kernels/reference/math.h"

namespace tie::bones::reference {
namespace {

constexpr uint32_t kWidestHead = 512;

float float_at(const std::byte* p) {
  float f;
  std::memcpy(&f, p, 4);
  return f;
}

// Codes of n numbers; returns their scale.
float to_codes(const float* x, uint32_t n, int8_t* codes) {
  float a = 0.0f;
  for (uint32_t d = 0; d < n; ++d) a = std::max(a, std::fabs(x[d]));
  const bool some = a > kQ8Smallest;
  const float inverse = some ? 127.0f / a : 0.0f;
  for (uint32_t d = 0; d < n; ++d)
    codes[d] = static_cast<int8_t>(std::clamp(std::nearbyint(x[d] * inverse), -127.0f, 127.0f));
  return some ? a / 127.0f : 0.0f;
}

const std::byte* group_of(const AttentionJob& job, uint32_t key) {
  return job.kv + size_t{job.block_table[key / job.block_tokens]} * job.block_stride +
         size_t{key % job.block_tokens / 16} * q8_group_bytes(job.head_dim);
}

float product(const AttentionJob& job, const int8_t* query, uint32_t key) {
  const std::byte* group = group_of(job, key);
  int32_t sum = 0;
  for (uint32_t d = 0; d < job.head_dim; ++d)
    sum += (static_cast<int32_t>(group[size_t{d / 4} * 64 + key % 16 * 4 + d % 4]) - 128) * query[d];
  return static_cast<float>(sum) * float_at(group + q8_key_scales_at(job.head_dim) + key % 16 * 4);
}

float exp2_q8(float x) {
  const float n = std::floor(x), f = x - n;
  const float p = std::fma(std::fma(kQ8Exp2[2], f, kQ8Exp2[1]), f, kQ8Exp2[0]);
  return n < -200.0f ? 0.0f : std::ldexp(p, static_cast<int>(n));
}

// Keys [begin, end) of a block that row r sees.
void attend_row(const AttentionJob& job, uint32_t r, uint32_t begin, uint32_t end, AttentionPartial& out) {
  int8_t query[kWidestHead];
  float turned[kWidestHead];
  q8_turn(job.q[r], job.head_dim, turned);
  float scale = to_codes(turned, job.head_dim, query) / static_cast<float>(q8_turned(job.head_dim)), t[kKeyBlock],
        lanes[16] = {}, w_lanes[16] = {};
  float max = -std::numeric_limits<float>::infinity(), most = 0.0f;
  for (uint32_t key = begin; key < end; ++key) {
    float& x = t[key % kKeyBlock];
    x = product(job, query, key);
    if (job.soft_cap > 0.0f) x = job.soft_cap * tanh_f32(x * scale / job.soft_cap);
    max = std::max(max, x);
  }
  if (job.soft_cap > 0.0f) scale = 1.0f;
  const float c = scale * kQ8Log2e, shift = -(max * c) - 1.0f;
  for (uint32_t key = begin; key < end; ++key) {
    float& x = t[key % kKeyBlock];
    const float p = exp2_q8(std::fma(x, c, shift));
    lanes[key % 16] += p;
    x = p * float_at(group_of(job, key) + q8_value_scales_at(job.head_dim) + key % 16 * 4);
    w_lanes[key % 16] += x;
    most = std::max(most, x);
  }
  out.max[r] = max * scale;
  out.sum[r] = fold_lanes(lanes);
  const bool some = most > kQ8Smallest;
  const float factor = some ? 255.0f / most : 0.0f;
  int32_t codes = 0;
  for (uint32_t key = begin; key < end; ++key)
    codes += static_cast<int32_t>(std::nearbyint(t[key % kKeyBlock] * factor));
  const float unit = some ? fold_lanes(w_lanes) / static_cast<float>(codes) : 0.0f;
  for (uint32_t d = 0; d < job.head_dim; ++d) {
    int32_t sum = 0;
    for (uint32_t key = begin; key < end; ++key) {
      const std::byte* values = group_of(job, key) + q8_values_at(job.head_dim);
      const auto code = static_cast<int8_t>(values[(size_t{key % 16 / 4} * job.head_dim + d) * 4 + key % 4]);
      sum += static_cast<int32_t>(std::nearbyint(t[key % kKeyBlock] * factor)) * code;
    }
    out.acc[size_t{r} * job.head_dim + d] = static_cast<float>(sum) * unit;
  }
}

}  // namespace

void q8_turn(const float* from, uint32_t head_dim, float* to) {
  if (from != to) std::copy_n(from, head_dim, to);
  for (uint32_t h = 1; h < q8_turned(head_dim); h *= 2) {
    for (uint32_t i = 0; i < head_dim; ++i) {
      if (i / h % 2 == 1) continue;
      const float a = to[i], b = to[i + h];
      to[i] = a + b;
      to[i + h] = a - b;
    }
  }
}

void q8_store(const StoreKvJob& job) {
  std::byte* group = job.head + size_t{job.slot / 16} * q8_group_bytes(job.head_dim);
  const uint32_t token = job.slot % 16;
  int8_t k[kWidestHead], v[kWidestHead];
  float turned[kWidestHead];
  q8_turn(job.k, job.head_dim, turned);
  const float k_scale = to_codes(turned, job.head_dim, k);
  q8_turn(job.v, job.head_dim, turned);
  const float v_scale = to_codes(turned, job.head_dim, v) / static_cast<float>(q8_turned(job.head_dim));
  std::byte* values = group + q8_values_at(job.head_dim);
  for (uint32_t d = 0; d < job.head_dim; ++d) {
    group[size_t{d / 4} * 64 + token * 4 + d % 4] = static_cast<std::byte>(k[d] + 128);
    values[(size_t{token / 4} * job.head_dim + d) * 4 + token % 4] = static_cast<std::byte>(v[d]);
  }
  std::memcpy(group + q8_key_scales_at(job.head_dim) + 4 * token, &k_scale, 4);
  std::memcpy(group + q8_value_scales_at(job.head_dim) + 4 * token, &v_scale, 4);
}

void q8_attend_block(const AttentionJob& job, uint32_t key_block, AttentionPartial& out) {
  for (uint32_t r = 0; r < job.n_rows; ++r) {
    const uint32_t begin = std::max(job.key_begin[r], key_block * kKeyBlock),
                   end = std::min(job.key_end[r], (key_block + 1) * kKeyBlock);
    if (begin < end) {
      attend_row(job, r, begin, end, out);
      continue;
    }
    out.max[r] = -std::numeric_limits<float>::infinity();
    out.sum[r] = 0.0f;
    std::fill_n(out.acc + size_t{r} * job.head_dim, job.head_dim, 0.0f);
  }
}

}  // namespace tie::bones::reference
