// The 64 bytes that configure the AMX tile registers (palette 1: eight tiles of up to 16 rows of 64 bytes), as
// LDTILECFG reads them. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.
#pragma once
#include <cstdint>

namespace tie::bones::amx {

inline constexpr uint32_t kTiles = 8, kTileRows = 16, kTileRowBytes = 64;

struct TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};  // entries past kTiles stay 0
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace tie::bones::amx
