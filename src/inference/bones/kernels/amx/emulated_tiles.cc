#include "inference/bones/kernels/amx/emulated_tiles.h"

#include <cstring>

namespace tie::bones::amx::emulated {
namespace {

struct Tile {
  uint8_t bytes[kTileRows][kTileRowBytes];
};

struct Registers {
  TileConfig config{.palette = 0};
  Tile tiles[kTiles] = {};
  const char* fault = nullptr;

  bool refuse(const char* why) {
    if (!fault) fault = why;
    return false;
  }
  bool usable(uint32_t tile) {
    if (fault) return false;
    if (config.palette == 0) return refuse("a tile is used before tiles are configured");
    if (tile >= kTiles) return refuse("there is no such tile");
    if (config.rows[tile] == 0) return refuse("a tile is used that the configuration leaves out");
    return true;
  }
};

thread_local Registers registers;

const char* wrong(const TileConfig& c) {
  if (c.palette != 1) return "the palette is not 1";
  if (c.start_row != 0) return "the start row is not 0";
  for (const uint8_t byte : c.reserved)
    if (byte != 0) return "a reserved byte is not 0";
  for (uint32_t t = 0; t < 16; ++t) {
    if (t >= kTiles && (c.rows[t] != 0 || c.row_bytes[t] != 0)) return "a tile past the last is configured";
    if (c.rows[t] > kTileRows) return "a tile has too many rows";
    if (c.row_bytes[t] > kTileRowBytes) return "a tile's rows are too long";
    if ((c.rows[t] == 0) != (c.row_bytes[t] == 0)) return "a tile has rows without bytes, or bytes without rows";
  }
  return nullptr;
}

// What TDPBUSD asks of the shapes of its tiles.
const char* wrong_product(const TileConfig& config, uint32_t c, uint32_t a, uint32_t b) {
  if (c == a || c == b || a == b) return "a product names a tile twice";
  if (config.row_bytes[c] % 4 != 0 || config.row_bytes[a] % 4 != 0 || config.row_bytes[b] % 4 != 0)
    return "rows of a product's tile are not whole words";
  if (config.rows[c] != config.rows[a]) return "sums and first factor differ in rows";
  if (config.row_bytes[a] / 4 != config.rows[b]) return "the factors differ in inputs";
  if (config.row_bytes[c] != config.row_bytes[b]) return "sums and second factor differ in columns";
  return nullptr;
}

}  // namespace

void configure(const TileConfig& config) {
  registers = Registers{.config = config};
  if (const char* why = wrong(config)) {
    registers.config = TileConfig{.palette = 0};
    registers.refuse(why);
  }
}

void release() {
  const char* fault = registers.fault;
  registers = Registers{};
  registers.fault = fault;
}

void zero(uint32_t tile) {
  if (registers.usable(tile)) registers.tiles[tile] = {};
}

void load(uint32_t tile, const void* from, size_t stride) {
  if (!registers.usable(tile)) return;
  registers.tiles[tile] = {};
  for (uint32_t r = 0; r < registers.config.rows[tile]; ++r)
    std::memcpy(registers.tiles[tile].bytes[r], static_cast<const uint8_t*>(from) + r * stride,
                registers.config.row_bytes[tile]);
}

void store(uint32_t tile, void* to, size_t stride) {
  if (!registers.usable(tile)) return;
  for (uint32_t r = 0; r < registers.config.rows[tile]; ++r)
    std::memcpy(static_cast<uint8_t*>(to) + r * stride, registers.tiles[tile].bytes[r],
                registers.config.row_bytes[tile]);
}

void dot_unsigned_signed(uint32_t c, uint32_t a, uint32_t b) {
  if (!registers.usable(c) || !registers.usable(a) || !registers.usable(b)) return;
  const TileConfig& config = registers.config;
  if (const char* why = wrong_product(config, c, a, b)) {
    registers.refuse(why);
    return;
  }
  Tile sums = {};  // bytes past the configured ones become 0
  for (uint32_t m = 0; m < config.rows[c]; ++m) {
    for (uint32_t n = 0; n < config.row_bytes[c] / 4; ++n) {
      uint32_t sum;
      std::memcpy(&sum, &registers.tiles[c].bytes[m][4 * n], 4);
      for (uint32_t k = 0; k < config.row_bytes[a]; ++k) {
        const int32_t x = registers.tiles[a].bytes[m][k],
                      y = static_cast<int8_t>(registers.tiles[b].bytes[k / 4][4 * n + k % 4]);
        sum += static_cast<uint32_t>(x * y);
      }
      std::memcpy(&sums.bytes[m][4 * n], &sum, 4);
    }
  }
  registers.tiles[c] = sums;
}

const char* fault() {
  return registers.fault;
}

bool configured() {
  return registers.config.palette != 0;
}

}  // namespace tie::bones::amx::emulated
