#include "inference/bones/kernels/cuda/pack_weights.h"

#include <cstring>

#include "inference/bones/model/quant_blocks.h"
#include "inference/bones/model/repack.h"

namespace tie::bones::cuda {
namespace {

using model_files::TensorType;

uint64_t aligned(uint64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

void put_half(uint8_t* p, float f) {
  const auto bits = static_cast<uint16_t>(float_to_half(f));
  std::memcpy(p, &bits, 2);
}

void put_quantised(Format format, const QuantBlock& block, uint8_t* codes, uint8_t* high, uint8_t* scales) {
  if (format == Format::kQ8) {
    for (uint32_t i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(block.code[i] - 128);
    return put_half(scales, block.scale[0]);
  }
  for (uint32_t i = 0; i < 16; ++i)
    codes[i] = static_cast<uint8_t>((block.code[i] & 15) | (block.code[i + 16] & 15) << 4);
  put_half(scales, block.scale[0]);
  put_half(scales + 2, format == Format::kQ6 ? block.scale[1] : block.minimum);
  if (format == Format::kQ5) {
    uint32_t bits = 0;
    for (uint32_t i = 0; i < 32; ++i) bits |= static_cast<uint32_t>(block.code[i] >> 4 & 1) << i;
    std::memcpy(high, &bits, 4);
  } else if (format == Format::kQ6) {
    std::memset(high, 0, 8);
    for (uint32_t i = 0; i < 32; ++i) high[i % 8] |= static_cast<uint8_t>((block.code[i] >> 4 & 3) << (2 * (i / 8)));
  }
}

}  // namespace

Format format_for(TensorType type) {
  switch (packing_for(type)) {
    case Packing::kTileQ4:
      return Format::kQ4;
    case Packing::kTileQ5:
      return Format::kQ5;
    case Packing::kTileQ6:
      return Format::kQ6;
    case Packing::kTileQ8:
      return Format::kQ8;
    case Packing::kTileF16:
      return Format::kF16;
    case Packing::kTileBf16:
      return Format::kBf16;
    default:
      return Format::kF32;
  }
}

Planes planes_of(Format format, uint32_t n, uint32_t k) {
  const BlockBytes bytes = block_bytes(format);
  const uint64_t blocks = uint64_t{n} * (k / 32);
  Planes planes;
  planes.high = aligned(blocks * bytes.codes);
  planes.scales = planes.high + aligned(blocks * bytes.high);
  planes.bytes = planes.scales + aligned(blocks * bytes.scales);
  return planes;
}

Matrix matrix_at(Format format, uint32_t n, uint32_t k, const uint8_t* base) {
  const Planes planes = planes_of(format, n, k);
  return {base + planes.codes, base + planes.high, base + planes.scales, n, k};
}

void pack_matrix(const TensorSource& source, uint32_t rope_dim, ByteView data, std::span<uint8_t> out) {
  const TensorType type = source.tensor->type;
  const Format format = format_for(type);
  const Planes planes = planes_of(format, source.n, source.k);
  const BlockBytes bytes = block_bytes(format);
  const auto* info = model_files::tensor_type_info(type);
  const uint32_t file_k = source.file_k ? source.file_k : source.k, blocks = source.k / 32;
  const size_t row_bytes = size_t{file_k} / info->block_elements * info->block_bytes;
  for (uint32_t r = 0; r < source.n; ++r) {
    const uint8_t* row = data.data() + file_row(source, rope_dim, r) * row_bytes;
    const uint64_t at = uint64_t{r} * blocks;
    if (bytes.scales == 0) {
      std::memcpy(out.data() + at * bytes.codes, row + size_t{source.first_k / 32} * bytes.codes,
                  size_t{blocks} * bytes.codes);
      continue;
    }
    for (uint32_t b = 0; b < blocks; ++b)
      put_quantised(format, read_block(type, row, b + source.first_k / 32), out.data() + (at + b) * bytes.codes,
                    out.data() + planes.high + (at + b) * bytes.high,
                    out.data() + planes.scales + (at + b) * bytes.scales);
  }
}

}  // namespace tie::bones::cuda
