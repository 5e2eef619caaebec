// The AMX tile registers in software, exactly: palette 1, loads and stores with a stride, TDPBUSD, all of the checks
// that the instructions make. The AMX kernels' body runs on it where no CPU has tiles, so that what is tested is the
// body itself. State is of the calling thread. What the hardware would refuse (#GP, #UD) is kept as the thread's fault:
// the instruction then does nothing, and so do all later ones until configure() or release().
#pragma once
#include <cstddef>
#include <cstdint>

#include "inference/bones/kernels/amx/tile_config.h"

namespace tie::bones::amx::emulated {

void configure(const TileConfig& config);  // zeroes all tiles
void release();
void zero(uint32_t tile);
void load(uint32_t tile, const void* from, size_t stride);  // row r from `from` + r * stride
void store(uint32_t tile, void* to, size_t stride);
// c[m][n] += sum over k of unsigned bytes of a[m][k] times signed bytes of b[k / 4][n][k % 4]; wraps at 32 bits.
void dot_unsigned_signed(uint32_t c, uint32_t a, uint32_t b);

// The first refusal since configure(), also after release(); null: none.
const char* fault();
bool configured();

}  // namespace tie::bones::amx::emulated
