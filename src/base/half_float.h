// Conversions between float32 and the small formats of model files (IEEE half, bfloat16; from e4m3), as raw bits. Round
// to nearest even. These functions have internal linkage on purpose: files compiled for one instruction set include
// this and must not lend their code to others. Pure.
#pragma once
#include <cstdint>
#include <cstring>

namespace tie {

static inline float bits_to_float(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
static inline uint32_t float_to_bits(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return bits;
}

static inline float half_to_float(uint32_t h) {
  const uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ffu;
  if (exponent == 31) return bits_to_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return bits_to_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float value = static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // subnormal: mantissa * 2^-24
  return sign ? -value : value;
}

// Nearest even, finite values saturate at the largest finite half; NaN stays NaN.
static inline uint32_t float_to_half(float f) {
  const uint32_t bits = float_to_bits(f), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x477fe000u) return sign | 0x7bffu;     // 65504 and above
  if (magnitude < 0x38800000u) {                           // below 2^-14: subnormal half
    const float scaled = bits_to_float(magnitude) + 0.5f;  // adding 0.5 rounds the value to a multiple of 2^-24
    return sign | (float_to_bits(scaled) - 0x3f000000u);
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1);
  const uint32_t half = (rounded - 0x38000000u) >> 13;
  return sign | (half > 0x7bffu ? 0x7bffu : half);
}

static inline float bf16_to_float(uint32_t b) {
  return bits_to_float(b << 16);
}
static inline uint32_t float_to_bf16(float f) {
  const uint32_t bits = float_to_bits(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40u;
  return (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
}

// e4m3: a sign, four bits of exponent, three of fraction; up to 448, no infinity, all ones NaN.
static inline float e4m3_to_float(uint8_t bits) {
  const uint32_t exponent = bits >> 3 & 15u, fraction = bits & 7u;
  if (exponent == 15 && fraction == 7) return bits_to_float(0x7fc00000u);
  const float size = exponent == 0 ? static_cast<float>(fraction) * 0.001953125f  // subnormal: fraction * 2^-9
                                   : bits_to_float((exponent + 120) << 23 | fraction << 20);
  return bits & 0x80u ? -size : size;
}

}  // namespace tie
