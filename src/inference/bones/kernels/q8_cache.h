// The 8-bit cache (KvType::kQ8): where things lie, and the arithmetic that every kernel set does to the bit.
// A head's record is a run of groups of 16 tokens, each one stretch of memory:
//   keys    [head_dim / 4][16 tokens][4]: code + 128, so that one vector meets four dimensions of the query
//   scales  [16] floats of the keys
//   values  [4][head_dim][4 tokens]: codes, so that one vector meets four tokens' weights
//   scales  [16] floats of the values
// Keys and queries are turned first, both alike, so that their products stay and a few large dimensions do not take the
// codes of all others; values as well, and what attention sums up is turned back at the end (turned twice is times
// q8_turned): each run of q8_turned dimensions goes through butterflies x[i], x[i + h] -> x[i] + x[i + h],
// x[i] - x[i + h] for h = 1, 2, 4 ... (a Hadamard matrix; its factor is in the query's scale).
// A code is round(x * (127 / a)), its scale a / 127 (of values divided by q8_turned), where a is the largest magnitude
// of the token's head; both are 0 when a is 1e-30 or less. Attention over keys [128 b, 128 b + 128):
//   query turned and rounded like a key (scale s, divided by q8_turned);  t = float(exact sum of products) * key scale
//   soft cap: t = cap * tanh(t * s / cap), then s = 1
//   m = largest t;  c = s * log2(e);  p = 2^fma(t, c, -(m * c) - 1), by kQ8Exp2: halves of them all, which
//   leaves quotients alone and makes the exponent's fraction exact
//   the row's maximum is m * s, its sum that of p in 16 lanes
//   w = p * value scale; u = round(w * (255 / largest w)); acc = float(exact sum of u * code) * (sum of w, in 16 lanes,
//   / exact sum of u), so that what rounding takes from small weights is not missing from the whole
// Rounding depends on one token's values, or on one row and the block of 128 keys at its absolute position; what a row
// does not see weighs exactly 0. So results depend on nothing else in the batch.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tie::bones {

inline constexpr float kQ8Smallest = 1e-30f, kQ8Log2e = 1.44269504f;
// 2^x = 2^floor(x) * (c[0] + f * (c[1] + f * c[2])), f = x - floor(x); relative error 0.0017, less than half a step of
// a weight.
inline constexpr float kQ8Exp2[3] = {1.0017246f, 0.657636702f, 0.337189317f};

// The largest power of two that divides head_dim: at least 16.
static inline uint32_t q8_turned(uint32_t head_dim) {
  return head_dim & (~head_dim + 1);
}

static inline size_t q8_group_bytes(uint32_t head_dim) {
  return size_t{32} * head_dim + 128;
}
static inline size_t q8_key_scales_at(uint32_t head_dim) {
  return size_t{16} * head_dim;
}
static inline size_t q8_values_at(uint32_t head_dim) {
  return size_t{16} * head_dim + 64;
}
static inline size_t q8_value_scales_at(uint32_t head_dim) {
  return size_t{32} * head_dim + 64;
}

// What prepare_queries leaves: codes of up to 8 rows, then a scale and -128 times the sum of the codes for each.
static inline int8_t* q8_query_codes(std::byte* prepared, uint32_t head_dim, uint32_t row) {
  return reinterpret_cast<int8_t*>(prepared) + size_t{row} * head_dim;
}
static inline float* q8_query_scales(std::byte* prepared, uint32_t head_dim) {
  return reinterpret_cast<float*>(prepared + size_t{8} * head_dim);
}
static inline int32_t* q8_query_starts(std::byte* prepared, uint32_t head_dim) {
  return reinterpret_cast<int32_t*>(prepared + size_t{8} * head_dim + 32);
}

}  // namespace tie::bones
