// How weights lie in GPU memory: row after row, blocks of 32 inputs; codes, high bits and scales in planes of their
// own so that a warp reads each as one run. Written by pack_weights.cc, read by the products. Scales
// of K quantisations, a product of two, are rounded to f16 (2^-11 of themselves).
//   kF32, kF16, kBf16: values.                     kQ8: 32 int8; f16 scale.               w = scale * code
//   kQ4: 16 bytes of nibbles (low: inputs 0-15, high: 16-31); f16 scale, f16 minimum.     w = scale * code + minimum
//   kQ5: the same, and a word with bit 4 of each code.
//   kQ6: nibbles, and 8 bytes with two bits of each code (input i: byte i % 8, bits 2 * (i / 8)); f16 scales of inputs
//        0-15 and 16-31.                                                                   w = scale * (code - 32)
#pragma once
#include "inference/bones/kernels/cuda/device.h"

namespace tie::bones::cuda {

enum class Format : uint32_t { kF32, kF16, kBf16, kQ8, kQ4, kQ5, kQ6 };

// n outputs by k inputs, k a multiple of 32; the planes are 16-byte aligned.
struct Matrix {
  const uint8_t* codes = nullptr;
  const uint8_t* high = nullptr;
  const uint8_t* scales = nullptr;
  uint32_t n = 0, k = 0;
};

// Bytes of a block of 32 inputs in each plane.
struct BlockBytes {
  uint32_t codes, high, scales;
};
TIE_DEVICE constexpr BlockBytes block_bytes(Format format) {
  switch (format) {
    case Format::kF32:
      return {128, 0, 0};
    case Format::kF16:
    case Format::kBf16:
      return {64, 0, 0};
    case Format::kQ8:
      return {32, 0, 2};
    case Format::kQ4:
      return {16, 0, 4};
    case Format::kQ5:
      return {16, 4, 4};
    case Format::kQ6:
      return {16, 8, 4};
  }
  return {0, 0, 0};
}

// Rows [first, first + n) of a matrix: one expert of a stack.
template <Format kFormat>
TIE_DEVICE Matrix rows_of(const Matrix& m, uint64_t first, uint32_t n) {
  constexpr BlockBytes kBytes = block_bytes(kFormat);
  const uint64_t at = first * (m.k / 32);
  return {m.codes + at * kBytes.codes, m.high + at * kBytes.high, m.scales + at * kBytes.scales, n, m.k};
}

TIE_DEVICE uint32_t load_u32(const uint8_t* p) {
  return *reinterpret_cast<const uint32_t*>(p);
}
TIE_DEVICE Bytes16 load_16(const uint8_t* p) {
  return *reinterpret_cast<const Bytes16*>(p);
}

// What half a block takes in memory: inputs [16 * half, 16 * half + 16). Four-bit codes of both halves lie in the same
// bytes.
TIE_DEVICE constexpr uint32_t half_loads(Format format) {
  return format == Format::kF32 ? 4 : format == Format::kF16 || format == Format::kBf16 ? 2 : 1;
}
template <Format kFormat>
struct RawHalf {
  Bytes16 codes[half_loads(kFormat)];
  uint32_t high[2] = {}, scales = 0;
};

template <Format kFormat>
TIE_DEVICE RawHalf<kFormat> load_raw(const Matrix& m, uint32_t row, uint32_t block, uint32_t half) {
  constexpr uint32_t kCodes = block_bytes(kFormat).codes;
  const uint64_t at = uint64_t{row} * (m.k / 32) + block;
  RawHalf<kFormat> raw;
  TIE_UNROLL
  for (uint32_t v = 0; v < half_loads(kFormat); ++v)
    raw.codes[v] = load_16(m.codes + at * kCodes + (kCodes == 16 ? 0 : half * (kCodes / 2)) + 16 * v);
  if constexpr (kFormat == Format::kQ8) raw.scales = *reinterpret_cast<const uint16_t*>(m.scales + at * 2);
  if constexpr (kCodes == 16) raw.scales = load_u32(m.scales + at * 4);
  if constexpr (kFormat == Format::kQ5) raw.high[0] = load_u32(m.high + at * 4);
  if constexpr (kFormat == Format::kQ6) {
    raw.high[0] = load_u32(m.high + at * 8);
    raw.high[1] = load_u32(m.high + at * 8 + 4);
  }
  return raw;
}

// Four codes of a half at once, a byte each: the j-th four.
template <Format kFormat>
TIE_DEVICE uint32_t four_codes(const RawHalf<kFormat>& raw, uint32_t half, uint32_t j) {
  const uint32_t word = raw.codes[0].word[j];
  if constexpr (kFormat == Format::kQ8) return word ^ 0x80808080u;  // signed codes and 128
  uint32_t codes = (word >> (4 * half)) & 0x0f0f0f0fu;
  if constexpr (kFormat == Format::kQ5) {
    const uint32_t bits = (raw.high[0] >> (16 * half + 4 * j)) & 15u;
    codes |= ((bits * 0x00204081u) & 0x01010101u) << 4;  // a bit to each byte
  }
  if constexpr (kFormat == Format::kQ6) codes |= ((raw.high[j % 2] >> (2 * (2 * half + j / 2))) & 0x03030303u) << 4;
  return codes;
}

template <Format kFormat>
TIE_DEVICE void decode(const RawHalf<kFormat>& raw, uint32_t half, float (&w)[16]) {
  if constexpr (kFormat == Format::kF32) {
    TIE_UNROLL
    for (uint32_t i = 0; i < 16; ++i) w[i] = as_float(raw.codes[i / 4].word[i % 4]);
  } else if constexpr (kFormat == Format::kF16 || kFormat == Format::kBf16) {
    TIE_UNROLL
    for (uint32_t i = 0; i < 16; ++i) {
      const uint32_t bits = (raw.codes[i / 8].word[i % 8 / 2] >> (16 * (i % 2))) & 0xffffu;
      w[i] = kFormat == Format::kBf16 ? bf16_value(bits) : half_value(static_cast<uint16_t>(bits));
    }
  } else {
    const float first = half_value(static_cast<uint16_t>(raw.scales & 0xffffu)),
                second = half_value(static_cast<uint16_t>(raw.scales >> 16));
    TIE_UNROLL
    for (uint32_t i = 0; i < 16; ++i) {
      const float code = byte_number(four_codes<kFormat>(raw, half, i / 4), i % 4);
      if constexpr (kFormat == Format::kQ8)
        w[i] = first * (code - 128.0f);
      else if constexpr (kFormat == Format::kQ6)
        w[i] = (half == 0 ? first : second) * (code - 32.0f);
      else
        w[i] = first * code + second;
    }
  }
}

// Inputs [16 * half, 16 * half + 16) of block `block` of row `row`.
template <Format kFormat>
TIE_DEVICE void load_half_block(const Matrix& m, uint32_t row, uint32_t block, uint32_t half, float (&w)[16]) {
  decode<kFormat>(load_raw<kFormat>(m, row, block, half), half, w);
}

}  // namespace tie::bones::cuda
