// The layouts that packing writes and kernels read. One layout serves every instruction set.
//
// A matrix of n outputs by k inputs is cut into strips of 16 outputs (columns); a strip is a run of tiles along k. The
// last strip is filled with zeros. Quantised tiles cover 32 inputs (a block), seen as 8 k-groups of 4; "vector" means
// 64 bytes in which byte 4c+t belongs to column c, input t of the group.
//   Q4  320 B: 4 vectors of nibbles (vector j: low = group j, high = group j+4), 16 words of 32 bits: scale s in the
//   low half, minimum m in the high one, both integers of up to kFoldedMax. A strip ends with 16 floats: the unit u of
//   each column.      w = u * (s * (code - 8) + 8 * m) Q5  384 B: the same nibbles, 8 words of 64 bits (word j: bit 4
//   of vector j's codes), 16 scales f16, 16 minima f16. w = scale * code + min Q6  448 B: nibbles as above, 2 vectors
//   of bit pairs (vector v, bits 2g..2g+1: group 4v+g), 16 scales of inputs 0-15, 16 of 16-31.      w = scale * (code -
//   32) Q8 1088 B: two blocks: 16 vectors of codes, 16 scales of the first block, 16 of the second. The last tile of an
//   odd k is half empty.  w = scale * (code - 128)
// Float tiles cover one input: 16 values.
// These functions have internal linkage on purpose: files compiled for one instruction set must not lend their code to
// others.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/half_float.h"

namespace tie::bones {

enum class Packing : uint32_t;

inline constexpr uint32_t kStrip = 16;
inline constexpr uint32_t kBlock = 32;
inline constexpr uint32_t kQ4TileBytes = 320;
inline constexpr uint32_t kQ5TileBytes = 384;
inline constexpr uint32_t kQ6TileBytes = 448;
inline constexpr uint32_t kQ8TileBytes = 1088;
inline constexpr uint32_t kQ4UnitBytes = 64;    // at the end of a strip
inline constexpr int32_t kFoldedMax = 8191;     // of an integer scale or minimum: sums of a scale group fit 32 bits
inline constexpr uint32_t kScaleBlocks = 2;     // blocks of a scale group
inline constexpr uint32_t kMaxTileRows = 12;    // rows of activations that one fused kernel takes
inline constexpr uint32_t kPanelTileRows = 13;  // the same where weights are unpacked for all tiles
inline constexpr uint32_t kFusedRows = 72;      // up to here unpacking in registers is faster
inline constexpr uint32_t kAmxTileRows = 16;    // rows of a tile where the AMX set multiplies
inline constexpr uint32_t kMostTileRows = 16;   // of any set: rows that the last tile of a batch may add

// Rows of a tile of a batch: as few tiles as possible, as even as possible.
static inline uint32_t rows_per_tile(uint32_t rows) {
  const uint32_t most = rows > kFusedRows ? kPanelTileRows : kMaxTileRows, tiles = (rows + most - 1) / most;
  return tiles == 0 ? 1 : (rows + tiles - 1) / tiles;
}

struct PackedMatrix {
  Packing packing{};
  uint32_t n = 0, k = 0;
  const std::byte* data = nullptr;
  uint32_t strips() const { return (n + kStrip - 1) / kStrip; }
};

// Input rows of a matrix product, quantised to int8 with one scale for each group of blocks: 1, or kScaleBlocks where
// some matrix that reads them is Q4 (each block of a group repeats the scale). Rows lie in tiles of rows_per_tile
// (the last one filled with zeros) so that a kernel walks them with constant offsets. Arrays are indexed
// [tile][block]... :
struct Activations {
  uint32_t rows = 0, k = 0;
  uint32_t rows_per_tile = 1;
  uint32_t group = kScaleBlocks;  // blocks that share a scale: 1 or kScaleBlocks
  int8_t* codes = nullptr;        // [tile][block][8 groups][rows_per_tile][4]
  float* scale = nullptr;         // [tile][block][rows_per_tile]
  float* sum = nullptr;           // [tile][block][rows_per_tile]: scale * sum of the codes
  int32_t* start4 = nullptr;      // [tile][block][rows_per_tile]: 65535 * 8 * sum of the codes, see kernel_set.h
  int32_t* neg128 = nullptr;      // [tile][block][rows_per_tile]: -128 * sum of the codes
  int32_t* neg32 = nullptr;       // [tile][block][2 halves][rows_per_tile]: -32 * sum of the half's codes
  float* f32 = nullptr;           // [row][f32_stride]: the unquantised rows, for float matrices
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

}  // namespace tie::bones
