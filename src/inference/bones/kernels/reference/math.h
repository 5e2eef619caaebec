// The scalar functions that every kernel set must reproduce bit for bit: each vector kernel performs these operations
// in this order on 16 lanes.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

#include "inference/bones/kernels/tile.h"

namespace tie::bones::reference {

// exp for x <= 88; below -87.3 exactly 0, so that a masked score weighs nothing. Relative error below 2e-7.
inline float exp_f32(float x) {
  if (!(x >= -87.3f)) return 0.0f;
  x = x > 88.0f ? 88.0f : x;
  const float n = std::nearbyint(x * 1.44269504f);
  float r = std::fma(n, -0.693359375f, x);
  r = std::fma(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  const float y = std::fma(p, r * r, r) + 1.0f;
  return y * bits_to_float(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
}

// 1 / x for 1 <= x < 2^122: a guess from the bits, then three steps of Newton's iteration. Relative error below 2e-7.
inline float reciprocal(float x) {
  float r = bits_to_float(0x7ef311c7u - float_to_bits(x));
  for (int i = 0; i < 3; ++i) r = std::fma(r, std::fma(-x, r, 1.0f), r);
  return r;
}

inline float at_most(float x, float limit) {
  return x < limit ? x : limit;
}

inline float tanh_f32(float x) {
  return 1.0f - 2.0f * reciprocal(exp_f32(at_most(x + x, 80.0f)) + 1.0f);
}

inline float silu(float x) {
  return x * reciprocal(1.0f + exp_f32(at_most(-x, 80.0f)));
}

inline float gelu_tanh(float x) {
  const float inner = x * std::fma(x * x, 0.044715f * 0.7978845608f, 0.7978845608f);
  return (0.5f * x) * (1.0f + tanh_f32(inner));
}

// The order in which 16 partial sums become one.
inline float fold_lanes(const float* lanes) {
  float s[8];
  for (int i = 0; i < 8; ++i) s[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) s[i] += s[i + 4];
  for (int i = 0; i < 2; ++i) s[i] += s[i + 2];
  return s[0] + s[1];
}

}  // namespace tie::bones::reference
