#include "inference/bones/kernels/reference/tile_access.h"

#include "inference/bones/weights_image.h"

namespace tie::bones {
namespace {

const std::byte* tile_of(Packing packing, const std::byte* strip, uint32_t b) {
  switch (packing) {
    case Packing::kTileQ4:
      return strip + size_t{b} * kQ4TileBytes;
    case Packing::kTileQ5:
      return strip + size_t{b} * kQ5TileBytes;
    case Packing::kTileQ6:
      return strip + size_t{b} * kQ6TileBytes;
    default:
      return strip + size_t{b / 2} * kQ8TileBytes;
  }
}

uint32_t byte_at(const std::byte* p) {
  return static_cast<uint32_t>(*p);
}

uint32_t nibble(const std::byte* tile, uint32_t group, uint32_t lane) {
  const uint32_t byte = byte_at(tile + 64 * (group & 3) + lane);
  return group < 4 ? byte & 15 : byte >> 4;
}

float float_at(Packing packing, const std::byte* strip, uint32_t i, uint32_t c) {
  const std::byte* p = strip + size_t{i} * strip_bytes(packing, 1);
  if (packing == Packing::kTileF16) return half_to_float(load_u16(p + 2 * c));
  if (packing == Packing::kTileBf16) return bf16_to_float(load_u16(p + 2 * c));
  float f;
  std::memcpy(&f, p + 4 * c, 4);
  return f;
}

}  // namespace

bool is_quantised(Packing packing) {
  return packing == Packing::kTileQ4 || packing == Packing::kTileQ5 || packing == Packing::kTileQ6 ||
         packing == Packing::kTileQ8;
}

size_t strip_bytes(Packing packing, uint32_t k) {
  const size_t blocks = k / kBlock;
  switch (packing) {
    case Packing::kTileQ4:
      return blocks * kQ4TileBytes + kQ4UnitBytes;
    case Packing::kTileQ5:
      return blocks * kQ5TileBytes;
    case Packing::kTileQ6:
      return blocks * kQ6TileBytes;
    case Packing::kTileQ8:
      return (blocks + 1) / 2 * kQ8TileBytes;
    case Packing::kTileF16:
    case Packing::kTileBf16:
      return size_t{k} * kStrip * 2;
    case Packing::kTileF32:
      return size_t{k} * kStrip * 4;
    case Packing::kVector:
      break;
  }
  return 0;
}

uint32_t tile_code(Packing packing, const std::byte* strip, uint32_t b, uint32_t c, uint32_t i) {
  const std::byte* tile = tile_of(packing, strip, b);
  const uint32_t group = i / 4, lane = 4 * c + i % 4;
  switch (packing) {
    case Packing::kTileQ4:
      return nibble(tile, group, lane);
    case Packing::kTileQ5:
      return nibble(tile, group, lane) | (((byte_at(tile + 256 + 8 * group + lane / 8) >> (lane % 8)) & 1) << 4);
    case Packing::kTileQ6:
      return nibble(tile, group, lane) |
             (((byte_at(tile + 256 + 64 * (group / 4) + lane) >> (2 * (group % 4))) & 3) << 4);
    default:
      return byte_at(tile + 512 * (b & 1) + 64 * group + lane);
  }
}

float tile_scale(Packing packing, const std::byte* strip, uint32_t b, uint32_t c, uint32_t i) {
  const std::byte* tile = tile_of(packing, strip, b);
  switch (packing) {
    case Packing::kTileQ5:
      return half_to_float(load_u16(tile + 320 + 2 * c));
    case Packing::kTileQ6:
      return half_to_float(load_u16(tile + 384 + 32 * (i / 16) + 2 * c));
    default:
      return half_to_float(load_u16(tile + 1024 + 32 * (b & 1) + 2 * c));
  }
}

float tile_minimum(Packing packing, const std::byte* strip, uint32_t b, uint32_t c) {
  const std::byte* tile = tile_of(packing, strip, b);
  if (packing == Packing::kTileQ5) return half_to_float(load_u16(tile + 352 + 2 * c));
  return 0.0f;
}

uint32_t code_offset(Packing packing) {
  return packing == Packing::kTileQ4 ? 8 : packing == Packing::kTileQ6 ? 32 : packing == Packing::kTileQ8 ? 128 : 0;
}

FoldedScale folded_scale(const std::byte* strip, uint32_t b, uint32_t c) {
  const std::byte* word = strip + size_t{b} * kQ4TileBytes + 256 + 4 * c;
  return {static_cast<int16_t>(load_u16(word)), static_cast<int16_t>(load_u16(word + 2))};
}

float folded_unit(const std::byte* strip, uint32_t k, uint32_t c) {
  float unit;
  std::memcpy(&unit, strip + size_t{k / kBlock} * kQ4TileBytes + 4 * c, 4);
  return unit;
}

namespace {

// Raw codes of one column of a block, group by group.
void column_codes(Packing packing, const std::byte* strip, uint32_t b, uint32_t c, uint8_t* codes) {
  if (packing == Packing::kTileQ8) {
    const std::byte* p = tile_of(packing, strip, b) + 512 * (b & 1) + 4 * c;
    for (uint32_t g = 0; g < 8; ++g) std::memcpy(codes + 4 * g, p + 64 * g, 4);
    return;
  }
  for (uint32_t i = 0; i < kBlock; ++i) codes[i] = static_cast<uint8_t>(tile_code(packing, strip, b, c, i));
}

}  // namespace

void gather_row(const PackedMatrix& w, uint32_t row, float* out) {
  const std::byte* strip = w.data + size_t{row / kStrip} * strip_bytes(w.packing, w.k);
  const uint32_t c = row % kStrip;
  if (!is_quantised(w.packing)) {
    for (uint32_t i = 0; i < w.k; ++i) out[i] = float_at(w.packing, strip, i, c);
    return;
  }
  const auto offset = static_cast<int32_t>(code_offset(w.packing));
  for (uint32_t b = 0; b < w.k / kBlock; ++b, out += kBlock) {
    uint8_t codes[kBlock];
    column_codes(w.packing, strip, b, c, codes);
    if (w.packing == Packing::kTileQ4) {
      const FoldedScale folded = folded_scale(strip, b, c);
      const float unit = folded_unit(strip, w.k, c);
      for (uint32_t i = 0; i < kBlock; ++i)
        out[i] = unit * static_cast<float>(folded.scale * (codes[i] - offset) + 8 * folded.minimum);
      continue;
    }
    const float scale[2] = {tile_scale(w.packing, strip, b, c, 0), tile_scale(w.packing, strip, b, c, 16)},
                minimum = tile_minimum(w.packing, strip, b, c);
    for (uint32_t i = 0; i < kBlock; ++i) out[i] = scale[i / 16] * static_cast<float>(codes[i] - offset) + minimum;
  }
}

}  // namespace tie::bones
