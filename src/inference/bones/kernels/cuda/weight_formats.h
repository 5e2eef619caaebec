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

// Inputs [16 * half, 16 * half + 16) of block `block` of row `row`.
template <Format kFormat>
TIE_DEVICE void load_half_block(const Matrix& m, uint32_t row, uint32_t block, uint32_t half, float (&w)[16]) {
  const uint64_t at = uint64_t{row} * (m.k / 32) + block;
  if constexpr (kFormat == Format::kF32) {
    const uint8_t* p = m.codes + at * 128 + half * 64;
    TIE_UNROLL
    for (uint32_t v = 0; v < 4; ++v) {
      const Bytes16 bytes = load_16(p + 16 * v);
      TIE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) w[4 * v + i] = as_float(bytes.word[i]);
    }
  } else if constexpr (kFormat == Format::kF16 || kFormat == Format::kBf16) {
    const uint8_t* p = m.codes + at * 64 + half * 32;
    TIE_UNROLL
    for (uint32_t v = 0; v < 2; ++v) {
      const Bytes16 bytes = load_16(p + 16 * v);
      TIE_UNROLL
      for (uint32_t i = 0; i < 8; ++i) {
        const uint32_t bits = (bytes.word[i / 2] >> (16 * (i % 2))) & 0xffffu;
        w[8 * v + i] = kFormat == Format::kBf16 ? bf16_value(bits) : half_value(static_cast<uint16_t>(bits));
      }
    }
  } else if constexpr (kFormat == Format::kQ8) {
    const Bytes16 bytes = load_16(m.codes + at * 32 + half * 16);
    const float scale = half_value(*reinterpret_cast<const uint16_t*>(m.scales + at * 2));
    TIE_UNROLL
    for (uint32_t i = 0; i < 16; ++i) {
      const auto code = static_cast<int8_t>(bytes.word[i / 4] >> (8 * (i % 4)));
      w[i] = scale * static_cast<float>(code);
    }
  } else {
    const Bytes16 bytes = load_16(m.codes + at * 16);
    const uint32_t scales = load_u32(m.scales + at * 4);
    const float first = half_value(static_cast<uint16_t>(scales & 0xffffu)),
                second = half_value(static_cast<uint16_t>(scales >> 16));
    const uint32_t high5 = kFormat == Format::kQ5 ? load_u32(m.high + at * 4) >> (16 * half) : 0;
    TIE_UNROLL
    for (uint32_t i = 0; i < 16; ++i) {
      uint32_t code = (bytes.word[i / 4] >> (8 * (i % 4) + 4 * half)) & 15u;
      if constexpr (kFormat == Format::kQ6) {
        const uint32_t input = 16 * half + i;
        code |= ((m.high[at * 8 + input % 8] >> (2 * (input / 8))) & 3u) << 4;
        w[i] = (half == 0 ? first : second) * (static_cast<float>(code) - 32.0f);
      } else {
        if constexpr (kFormat == Format::kQ5) code |= ((high5 >> i) & 1u) << 4;
        w[i] = first * static_cast<float>(code) + second;
      }
    }
  }
}

}  // namespace tie::bones::cuda
