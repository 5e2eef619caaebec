#include "inference/bones/model/repack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "inference/bones/kernels/reference/tile_access.h"
#include "inference/bones/kernels/tile.h"
#include "inference/bones/model/quant_blocks.h"

namespace tie::bones {

uint32_t file_row(const TensorSource& source, uint32_t rope_dim, uint32_t row) {
  if (source.part_rows != 0)
    return row / source.part_rows * source.file_part_rows + source.first_row + row % source.part_rows;
  if (source.interleaved_head == 0) return source.first_row + row;
  const uint32_t head = row / source.interleaved_head * source.interleaved_head, i = row % source.interleaved_head;
  if (i >= rope_dim) return source.first_row + row;
  const uint32_t half = rope_dim / 2;
  return source.first_row + head + (i < half ? 2 * i : 2 * (i - half) + 1);
}

namespace {

using model_files::TensorType;

void put_half(std::byte* p, float f) {
  const auto bits = static_cast<uint16_t>(float_to_half(f));
  std::memcpy(p, &bits, 2);
}

void put_nibbles(std::byte* tile, uint32_t c, const uint8_t* code) {
  for (uint32_t i = 0; i < 16; ++i) {
    const uint32_t low = code[i] & 15u, high = code[i + 16] & 15u;
    tile[64 * (i / 4) + 4 * c + i % 4] = static_cast<std::byte>(low | high << 4);
  }
}

void put_block(Packing packing, std::byte* strip, uint32_t b, uint32_t c, const QuantBlock& block) {
  if (packing == Packing::kTileQ8) {
    std::byte* tile = strip + size_t{b / 2} * kQ8TileBytes;
    for (uint32_t i = 0; i < 32; ++i)
      tile[512 * (b & 1) + 64 * (i / 4) + 4 * c + i % 4] = static_cast<std::byte>(block.code[i]);
    put_half(tile + 1024 + 32 * (b & 1) + 2 * c, block.scale[0]);
    return;
  }
  std::byte* tile = strip + b * strip_bytes(packing, kBlock);
  put_nibbles(tile, c, block.code);
  for (uint32_t i = 0; i < 32; ++i) {
    const uint32_t group = i / 4, lane = 4 * c + i % 4, up = block.code[i] >> 4;
    if (packing == Packing::kTileQ5)
      tile[256 + 8 * group + lane / 8] |= static_cast<std::byte>(up << (lane % 8));
    else
      tile[256 + 64 * (group / 4) + lane] |= static_cast<std::byte>(up << (2 * (group % 4)));
  }
  if (packing == Packing::kTileQ5) {
    put_half(tile + 320 + 2 * c, block.scale[0]);
    put_half(tile + 352 + 2 * c, block.minimum);
  } else {
    put_half(tile + 384 + 2 * c, block.scale[0]);
    put_half(tile + 416 + 2 * c, block.scale[1]);
  }
}

// What a half can hold; NaN becomes 0.
float bounded(float f) {
  return f == f ? std::clamp(f, -65504.0f, 65504.0f) : 0.0f;
}

int32_t folded(float f, float unit) {
  const auto largest = static_cast<float>(kFoldedMax);
  return unit > 0 ? static_cast<int32_t>(std::lrint(std::clamp(f / unit, -largest, largest))) : 0;
}

// A column of a Q4 strip: scales and minima (of code - 8) as integers in the smallest unit in which all of them fit.
void put_folded_column(std::byte* strip, uint32_t c, const std::vector<QuantBlock>& blocks) {
  auto minimum_of = [](const QuantBlock& b) { return (bounded(b.minimum) + 8 * bounded(b.scale[0])) / 8; };
  float largest = 0;
  for (const QuantBlock& block : blocks)
    largest = std::max({largest, std::fabs(bounded(block.scale[0])), std::fabs(minimum_of(block))});
  const float unit = largest / static_cast<float>(kFoldedMax);
  std::byte* tile = strip;
  for (const QuantBlock& block : blocks) {
    put_nibbles(tile, c, block.code);
    const auto scale = static_cast<int16_t>(folded(bounded(block.scale[0]), unit)),
               minimum = static_cast<int16_t>(folded(minimum_of(block), unit));
    std::memcpy(tile + 256 + 4 * c, &scale, 2);
    std::memcpy(tile + 258 + 4 * c, &minimum, 2);
    tile += kQ4TileBytes;
  }
  std::memcpy(tile + 4 * c, &unit, 4);
}

void put_float(Packing packing, std::byte* strip, uint32_t i, uint32_t c, const uint8_t* row, uint32_t file_i) {
  const uint32_t width = packing == Packing::kTileF32 ? 4 : 2;
  std::memcpy(strip + (size_t{i} * kStrip + c) * width, row + size_t{file_i} * width, width);
}

}  // namespace

Packing packing_for(TensorType type) {
  switch (type) {
    case TensorType::kQ4_0:
    case TensorType::kQ4_1:
    case TensorType::kQ4_K:
      return Packing::kTileQ4;
    case TensorType::kQ5_0:
    case TensorType::kQ5_1:
    case TensorType::kQ5_K:
      return Packing::kTileQ5;
    case TensorType::kQ6_K:
      return Packing::kTileQ6;
    case TensorType::kQ8_0:
      return Packing::kTileQ8;
    case TensorType::kF16:
      return Packing::kTileF16;
    case TensorType::kBF16:
      return Packing::kTileBf16;
    default:
      return Packing::kTileF32;
  }
}

uint64_t packed_bytes(Packing packing, uint32_t n, uint32_t k) {
  const uint64_t bytes =
      packing == Packing::kVector ? uint64_t{n} * 4 : uint64_t{(n + kStrip - 1) / kStrip} * strip_bytes(packing, k);
  return (bytes + kImageAlignment - 1) / kImageAlignment * kImageAlignment;
}

void repack_strips(const TensorSource& source, uint32_t rope_dim, ByteView data, uint32_t first, uint32_t last,
                   std::byte* out) {
  const Packing packing = packing_for(source.tensor->type);
  const size_t bytes = strip_bytes(packing, source.k);
  const auto* info = model_files::tensor_type_info(source.tensor->type);
  const uint32_t file_k = source.file_k ? source.file_k : source.k;
  const size_t row_bytes = size_t{file_k} / info->block_elements * info->block_bytes;
  std::vector<QuantBlock> column(packing == Packing::kTileQ4 ? source.k / kBlock : 0);
  for (uint32_t s = first; s < last; ++s) {
    std::byte* strip = out + s * bytes;
    std::memset(strip, 0, bytes);
    for (uint32_t c = 0; c < kStrip && s * kStrip + c < source.n; ++c) {
      const uint8_t* row = data.data() + file_row(source, rope_dim, s * kStrip + c) * row_bytes;
      if (packing == Packing::kTileQ4) {
        for (uint32_t b = 0; b < source.k / kBlock; ++b)
          column[b] = read_block(source.tensor->type, row, b + source.first_k / kBlock);
        put_folded_column(strip, c, column);
      } else if (is_quantised(packing))
        for (uint32_t b = 0; b < source.k / kBlock; ++b)
          put_block(packing, strip, b, c, read_block(source.tensor->type, row, b + source.first_k / kBlock));
      else
        for (uint32_t i = 0; i < source.k; ++i) put_float(packing, strip, i, c, row, source.first_k + i);
    }
  }
}

void repack_vector(const TensorSource& source, uint32_t rope_dim, ByteView data, float* out) {
  for (uint32_t i = 0; i < source.n; ++i)
    out[i] = read_float(source.tensor->type, data.data(), file_row(source, rope_dim, i));
}

}  // namespace tie::bones
