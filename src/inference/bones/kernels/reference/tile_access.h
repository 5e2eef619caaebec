// Element-wise view of a packed tile: slow and plain. Used by the reference kernels, by packing's tests and to gather
// embedding rows.
#pragma once
#include <cstdint>

#include "inference/bones/kernels/tile.h"

namespace tie::bones {

// Bytes of one strip (16 outputs) of k inputs; 0 for kVector. k of a quantised packing is a multiple of 32.
size_t strip_bytes(Packing packing, uint32_t k);
bool is_quantised(Packing packing);

// Code of input i (0..31) of column c in the tile that holds block b of a strip.
uint32_t tile_code(Packing packing, const std::byte* strip, uint32_t b, uint32_t c, uint32_t i);
// Scale of that input, and what is added after scaling the raw code: w = scale * (code - offset) + minimum. Not for Q4,
// whose scales are integers.
float tile_scale(Packing packing, const std::byte* strip, uint32_t b, uint32_t c, uint32_t i);
float tile_minimum(Packing packing, const std::byte* strip, uint32_t b, uint32_t c);
uint32_t code_offset(Packing packing);

// The integers of a block of a Q4 strip, and the unit of a column.
struct FoldedScale {
  int32_t scale, minimum;
};
FoldedScale folded_scale(const std::byte* strip, uint32_t b, uint32_t c);
float folded_unit(const std::byte* strip, uint32_t k, uint32_t c);

// out[0..k) = the weights of output `row`.
void gather_row(const PackedMatrix& w, uint32_t row, float* out);

}  // namespace tie::bones
