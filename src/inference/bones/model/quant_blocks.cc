#include "inference/bones/model/quant_blocks.h"

#include <cstring>

#include "base/result.h"
#include "inference/bones/kernels/tile.h"

namespace tie::bones {
namespace {

using model_files::TensorType;

float half_at(const uint8_t* p) {
  return half_to_float(load_u16(reinterpret_cast<const std::byte*>(p)));
}

void nibbles(const uint8_t* p, QuantBlock& out) {
  for (int i = 0; i < 16; ++i) {
    out.code[i] = p[i] & 15;
    out.code[i + 16] = p[i] >> 4;
  }
}

void fifth_bits(const uint8_t* p, QuantBlock& out) {
  for (int i = 0; i < 32; ++i) out.code[i] = static_cast<uint8_t>(out.code[i] | (((p[i / 8] >> (i % 8)) & 1) << 4));
}

// 6-bit scale and minimum number j of a K block: eight of each in 12 bytes.
void k_scale(const uint8_t* p, uint32_t j, uint32_t& scale, uint32_t& minimum) {
  if (j < 4) {
    scale = p[j] & 63;
    minimum = p[j + 4] & 63;
  } else {
    scale = static_cast<uint32_t>((p[j + 4] & 15) | ((p[j - 4] >> 6) << 4));
    minimum = static_cast<uint32_t>((p[j + 4] >> 4) | ((p[j] >> 6) << 4));
  }
}

// Q4_K and Q5_K: d, dmin, 12 bytes of scales, (32 bytes of fifth bits,) 128 bytes of nibbles; sub-blocks 2i and 2i+1
// share 32 bytes.
QuantBlock read_k45(const uint8_t* super, uint32_t j, bool five) {
  QuantBlock out;
  uint32_t scale = 0, minimum = 0;
  k_scale(super + 4, j, scale, minimum);
  const uint8_t* codes = super + (five ? 48 : 16) + 32 * (j / 2);
  for (int i = 0; i < 32; ++i) {
    out.code[i] = j % 2 == 0 ? codes[i] & 15 : codes[i] >> 4;
    if (five) out.code[i] = static_cast<uint8_t>(out.code[i] | (((super[16 + i] >> j) & 1) << 4));
  }
  out.scale[0] = out.scale[1] = half_at(super) * static_cast<float>(scale);
  out.minimum = -half_at(super + 2) * static_cast<float>(minimum);
  return out;
}

// Q6_K: 128 bytes of low nibbles, 64 of bit pairs, 16 signed scales, d. Halves of 128 weights; within one, four runs
// of 32.
QuantBlock read_k6(const uint8_t* super, uint32_t j) {
  QuantBlock out;
  const uint32_t half = j / 4, run = j % 4;
  const uint8_t* low = super + 64 * half + 32 * (run & 1);
  const uint8_t* pairs = super + 128 + 32 * half;
  for (int i = 0; i < 32; ++i) {
    const uint32_t nibble = run < 2 ? low[i] & 15u : low[i] >> 4;
    out.code[i] = static_cast<uint8_t>(nibble | (((pairs[i] >> (2 * run)) & 3u) << 4));
  }
  const float d = half_at(super + 208);
  for (uint32_t h = 0; h < 2; ++h) out.scale[h] = d * static_cast<float>(static_cast<int8_t>(super[192 + 2 * j + h]));
  out.minimum = 0;
  return out;
}

QuantBlock read_q8(const uint8_t* p) {
  QuantBlock out;
  for (int i = 0; i < 32; ++i) out.code[i] = p[2 + i] ^ 0x80;
  out.scale[0] = out.scale[1] = half_at(p);
  out.minimum = 0;
  return out;
}

// Q4_0, Q4_1, Q5_0, Q5_1. The kinds without a minimum centre their codes; the centre becomes a minimum.
QuantBlock read_legacy(const uint8_t* p, bool five, bool has_minimum) {
  QuantBlock out;
  const uint8_t* at = p + (has_minimum ? 4 : 2);
  nibbles(five ? at + 4 : at, out);
  if (five) fifth_bits(at, out);
  out.scale[0] = out.scale[1] = half_at(p);
  out.minimum = has_minimum ? half_at(p + 2) : half_at(p) * (five ? -16.0f : -8.0f);
  return out;
}

}  // namespace

QuantBlock read_block(TensorType type, const uint8_t* row, uint32_t b) {
  switch (type) {
    case TensorType::kQ4_0:
      return read_legacy(row + size_t{b} * 18, false, false);
    case TensorType::kQ4_1:
      return read_legacy(row + size_t{b} * 20, false, true);
    case TensorType::kQ5_0:
      return read_legacy(row + size_t{b} * 22, true, false);
    case TensorType::kQ5_1:
      return read_legacy(row + size_t{b} * 24, true, true);
    case TensorType::kQ8_0:
      return read_q8(row + size_t{b} * 34);
    case TensorType::kQ4_K:
      return read_k45(row + size_t{b / 8} * 144, b % 8, false);
    case TensorType::kQ5_K:
      return read_k45(row + size_t{b / 8} * 176, b % 8, true);
    case TensorType::kQ6_K:
      return read_k6(row + size_t{b / 8} * 210, b % 8);
    default:
      tie_check(false, "read_block is for quantised types");
      __builtin_unreachable();
  }
}

float read_float(TensorType type, const uint8_t* row, uint32_t i) {
  const auto* p = reinterpret_cast<const std::byte*>(row);
  if (type == TensorType::kF16) return half_to_float(load_u16(p + 2 * size_t{i}));
  if (type == TensorType::kBF16) return bf16_to_float(load_u16(p + 2 * size_t{i}));
  float f;
  std::memcpy(&f, p + 4 * size_t{i}, 4);
  return f;
}

}  // namespace tie::bones
