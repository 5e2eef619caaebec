// The emulated tile registers against the definition of each instruction, and every refusal.
#include "inference/bones/kernels/amx/emulated_tiles.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

namespace tie::bones::amx {
namespace {

// Tile 0: sums of m x n; 1: unsigned factor of m x k; 2: signed factor of k x n, as words of four inputs.
TileConfig shapes(uint32_t m, uint32_t n, uint32_t k) {
  TileConfig config;
  auto set = [&](uint32_t tile, uint32_t rows, uint32_t bytes) {
    config.rows[tile] = static_cast<uint8_t>(rows), config.row_bytes[tile] = static_cast<uint16_t>(bytes);
  };
  set(0, m, 4 * n), set(1, m, k), set(2, k / 4, 4 * n);
  return config;
}

TEST(EmulatedTiles, AProductIsTheSumOfItsTerms) {
  std::mt19937 random(1);
  for (const auto& [m, n, k] :
       {std::array{16u, 16u, 64u}, {16u, 16u, 32u}, {16u, 16u, 16u}, {1u, 1u, 4u}, {5u, 7u, 28u}}) {
    emulated::configure(shapes(m, n, k));
    std::vector<uint8_t> a(m * 80), b(k / 4 * 80);
    for (auto* bytes : {&a, &b})
      for (uint8_t& byte : *bytes) byte = static_cast<uint8_t>(random());
    std::vector<int32_t> c(m * 20), out(m * 20, 5);
    for (int32_t& value : c) value = static_cast<int32_t>(random());
    emulated::load(0, c.data(), 80);
    emulated::load(1, a.data(), 80);
    emulated::load(2, b.data(), 80);
    emulated::dot_unsigned_signed(0, 1, 2);
    emulated::store(0, out.data(), 80);
    ASSERT_EQ(emulated::fault(), nullptr) << emulated::fault();
    for (uint32_t i = 0; i < m; ++i) {
      for (uint32_t j = 0; j < 20; ++j) {
        int64_t sum = c[i * 20 + j];
        for (uint32_t x = 0; x < k; ++x)
          sum += int64_t{a[i * 80 + x]} * static_cast<int8_t>(b[x / 4 * 80 + 4 * j + x % 4]);
        EXPECT_EQ(out[i * 20 + j], j < n ? static_cast<int32_t>(static_cast<uint32_t>(sum)) : 5) << i << " " << j;
      }
    }
  }
}

TEST(EmulatedTiles, AStrideOfZeroRepeatsARowAndZeroEmptiesATile) {
  emulated::configure(shapes(16, 16, 64));
  std::array<int32_t, 16> row{};
  for (int32_t i = 0; i < 16; ++i) row[i] = i * 1000 - 7;
  std::array<int32_t, 256> out{};
  emulated::load(0, row.data(), 0);
  emulated::store(0, out.data(), 64);
  for (size_t i = 0; i < 256; ++i) EXPECT_EQ(out[i], row[i % 16]);
  emulated::zero(0);
  emulated::store(0, out.data(), 64);
  for (const int32_t value : out) EXPECT_EQ(value, 0);
  EXPECT_EQ(emulated::fault(), nullptr);
}

TEST(EmulatedTiles, AShorterLoadClearsTheRestOfTheTile) {
  TileConfig config = shapes(16, 16, 64);
  emulated::configure(config);
  std::vector<uint8_t> ones(64 * 16, 1);
  emulated::load(0, ones.data(), 64);
  config.rows[0] = 2, config.row_bytes[0] = 8;  // a new configuration starts from zeroes
  emulated::configure(config);
  std::vector<uint8_t> out(64 * 16, 9);
  emulated::store(0, out.data(), 64);
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], i / 64 < 2 && i % 64 < 8 ? 0 : 9) << i;
}

TEST(EmulatedTiles, WhatTheCpuWouldRefuseIsAFault) {
  struct Case {
    const char* what;
    std::function<void(TileConfig&)> spoil;
    std::function<void()> then;
  };
  auto nothing = [](TileConfig&) {};
  auto idle = [] {};
  auto product = [] { emulated::dot_unsigned_signed(0, 1, 2); };
  const Case cases[] = {
      {"palette", [](TileConfig& c) { c.palette = 2; }, idle},
      {"palette 0 is no tiles", [](TileConfig& c) { c.palette = 0; }, idle},
      {"start row", [](TileConfig& c) { c.start_row = 1; }, idle},
      {"reserved byte", [](TileConfig& c) { c.reserved[13] = 1; }, idle},
      {"ninth tile", [](TileConfig& c) { c.rows[8] = 1, c.row_bytes[8] = 4; }, idle},
      {"17 rows", [](TileConfig& c) { c.rows[0] = 17; }, idle},
      {"65 bytes", [](TileConfig& c) { c.row_bytes[0] = 65; }, idle},
      {"rows of nothing", [](TileConfig& c) { c.row_bytes[0] = 0; }, idle},
      {"bytes of no rows", [](TileConfig& c) { c.rows[0] = 0; }, idle},
      {"unconfigured tile", nothing, [] { emulated::zero(3); }},
      {"no such tile", nothing, [] { emulated::zero(8); }},
      {"sums twice", nothing, [] { emulated::dot_unsigned_signed(0, 0, 2); }},
      {"one factor", nothing, [] { emulated::dot_unsigned_signed(0, 1, 1); }},
      {"half a word", [](TileConfig& c) { c.row_bytes[1] = 62; }, product},
      {"rows differ", [](TileConfig& c) { c.rows[1] = 15; }, product},
      {"inputs differ", [](TileConfig& c) { c.rows[2] = 15; }, product},
      {"columns differ", [](TileConfig& c) { c.row_bytes[2] = 60; }, product},
  };
  for (const Case& one : cases) {
    TileConfig config = shapes(16, 16, 64);
    one.spoil(config);
    emulated::configure(config);
    one.then();
    EXPECT_NE(emulated::fault(), nullptr) << one.what;
    std::array<int32_t, 256> out;
    out.fill(3);
    emulated::store(0, out.data(), 64);  // after a fault nothing happens
    for (const int32_t value : out) EXPECT_EQ(value, 3);
  }
  emulated::configure(shapes(16, 16, 64));
  EXPECT_EQ(emulated::fault(), nullptr);
  product();
  EXPECT_EQ(emulated::fault(), nullptr);
  emulated::release();
  EXPECT_FALSE(emulated::configured());
  emulated::zero(0);
  EXPECT_NE(emulated::fault(), nullptr) << "released";
}

}  // namespace
}  // namespace tie::bones::amx
