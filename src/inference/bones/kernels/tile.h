// The layouts that packing writes and kernels read. One layout serves every instruction set.
//
// A matrix of n outputs by k inputs is cut into strips of 16 outputs (columns); a strip is a run of tiles along k. The
// last strip is filled with zeros. Quantised tiles cover 32 inputs (a block), seen as 8 k-groups of 4; "vector" means
// 64 bytes in which byte 4c+t belongs to column c, input t of the group.
//   Q4  320 B: 4 vectors of nibbles (vector j: low = group j, high = group j+4), 16 scales f16, 16 minima f16.     w =
//   scale * code + min Q5  384 B: the same nibbles, 8 words of 64 bits (word j: bit 4 of vector j's codes), 16 scales,
//   16 minima.      w = scale * code + min Q6  448 B: nibbles as above, 2 vectors of bit pairs (vector v, bits
//   2g..2g+1: group 4v+g), 16 scales of inputs 0-15, 16 of 16-31.  w = scale * (code - 32) Q8 1088 B: two blocks: 16
//   vectors of codes, 16 scales of the first block, 16 of the second. The last tile of an odd k is half empty.  w =
//   scale * (code - 128)
// Float tiles cover one input: 16 values.
// These functions have internal linkage on purpose: files compiled for one instruction set must not lend their code to
// others.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tie::bones {

enum class Packing : uint32_t;

inline constexpr uint32_t kStrip = 16;
inline constexpr uint32_t kBlock = 32;
inline constexpr uint32_t kQ4TileBytes = 320;
inline constexpr uint32_t kQ5TileBytes = 384;
inline constexpr uint32_t kQ6TileBytes = 448;
inline constexpr uint32_t kQ8TileBytes = 1088;
inline constexpr uint32_t kMaxTileRows = 12;  // rows of activations that one fused kernel takes

struct PackedMatrix {
  Packing packing{};
  uint32_t n = 0, k = 0;
  const std::byte* data = nullptr;
  uint32_t strips() const { return (n + kStrip - 1) / kStrip; }
};

// Input rows of a matrix product, quantised to int8 with one scale per 32 inputs. Rows lie in tiles of rows_per_tile
// (the last one filled with zeros) so that a kernel walks them with constant offsets. Arrays are indexed
// [tile][block]... :
struct Activations {
  uint32_t rows = 0, k = 0;
  uint32_t rows_per_tile = 1;
  int8_t* codes = nullptr;    // [tile][block][8 groups][rows_per_tile][4]
  float* scale = nullptr;     // [tile][block][rows_per_tile]
  float* sum = nullptr;       // [tile][block][rows_per_tile]: scale * sum of the codes
  int32_t* neg128 = nullptr;  // [tile][block][rows_per_tile]: -128 * sum of the codes
  int32_t* neg32 = nullptr;   // [tile][block][2 halves][rows_per_tile]: -32 * sum of the half's codes
  float* f32 = nullptr;       // [row][f32_stride]: the unquantised rows, for float matrices
  size_t f32_stride = 0;
  bool want_f32 = false, want_codes = true;
  uint32_t blocks() const { return k / kBlock; }
  uint32_t tiles() const { return (rows + rows_per_tile - 1) / rows_per_tile; }
};

static inline uint32_t load_u16(const std::byte* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

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

}  // namespace tie::bones
