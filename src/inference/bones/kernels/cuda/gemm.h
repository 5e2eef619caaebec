// Products for prefill: many rows of bf16 activations times a matrix, dequantised to bf16 in shared memory, through
// mma.sync (every tensor-core GPU since 2020; the twin of any faster path). Tile 64 x 64, four warps of 32 x 32.
#pragma once
#include "inference/bones/kernels/cuda/weight_formats.h"

namespace tie::bones::cuda {

inline constexpr uint32_t kGemmThreads = 128, kGemmTile = 64;
inline constexpr uint32_t kGemmStride = 20;  // words of a row of 32 bf16 in shared memory: no bank conflicts
inline constexpr uint32_t kGemmSharedBytes = 2 * kGemmTile * kGemmStride * 4;

struct GemmArgs {
  Matrix w;
  const uint16_t* x = nullptr;      // [rows][k] bf16, 4-byte aligned
  const uint32_t* x_row = nullptr;  // null, or which row of x is row i
  float* y = nullptr;               // [rows][y_stride]
  uint32_t rows = 0, y_stride = 0;
  uint32_t add = 0;
};

template <Format kFormat, typename Block, typename Shared>
TIE_DEVICE void gemm_stage(Block& b, const GemmArgs& a, uint32_t row0, uint32_t column0, uint32_t block,
                           const Shared& left, const Shared& right) {
  const auto* x = reinterpret_cast<const uint32_t*>(a.x);
  for (uint32_t i = b.thread(); i < kGemmTile * 16; i += kGemmThreads) {
    const uint32_t row = i / 16, word = i % 16;
    uint32_t bits = 0;
    if (row0 + row < a.rows) {
      const uint32_t from = a.x_row ? a.x_row[row0 + row] : row0 + row;
      bits = x[uint64_t{from} * (a.w.k / 2) + block * 16 + word];
    }
    left[row * kGemmStride + word] = bits;
  }
  const uint32_t column = b.thread() / 2, half = b.thread() % 2;
  float w[16] = {};
  if (column0 + column < a.w.n) load_half_block<kFormat>(a.w, column0 + column, block, half, w);
  for (uint32_t i = 0; i < 8; ++i)
    right[column * kGemmStride + half * 8 + i] = bf16_bits(w[2 * i]) | bf16_bits(w[2 * i + 1]) << 16;
}

// Rows from row0 on, at most a tile of them.
template <Format kFormat, typename Block>
TIE_DEVICE void gemm_rows(Block& b, const GemmArgs& a, uint32_t row0) {
  auto left = b.template shared<uint32_t>(0, kGemmTile * kGemmStride);
  auto right = b.template shared<uint32_t>(kGemmTile * kGemmStride * 4, kGemmTile * kGemmStride);
  const uint32_t warp = b.thread() / kWarp, lane = b.thread() % kWarp, group = lane / 4, pair = lane % 4;
  const uint32_t column0 = b.block_x() * kGemmTile;
  const uint32_t warp_row = (warp / 2) * 32, warp_column = (warp % 2) * 32;
  float d[2][4][4] = {};
  for (uint32_t block = 0; block < a.w.k / 32; ++block) {
    b.sync();
    gemm_stage<kFormat>(b, a, row0, column0, block, left, right);
    b.sync();
    TIE_UNROLL
    for (uint32_t step = 0; step < 2; ++step) {
      uint32_t fa[2][4], fb[4][2];
      TIE_UNROLL
      for (uint32_t m = 0; m < 2; ++m)
        for (uint32_t i = 0; i < 4; ++i)
          fa[m][i] = left[(warp_row + 16 * m + group + 8 * (i % 2)) * kGemmStride + 8 * step + pair + 4 * (i / 2)];
      TIE_UNROLL
      for (uint32_t n = 0; n < 4; ++n)
        for (uint32_t i = 0; i < 2; ++i)
          fb[n][i] = right[(warp_column + 8 * n + group) * kGemmStride + 8 * step + pair + 4 * i];
      TIE_UNROLL
      for (uint32_t m = 0; m < 2; ++m)
        for (uint32_t n = 0; n < 4; ++n) b.mma(d[m][n], fa[m], fb[n]);
    }
  }
  TIE_UNROLL
  for (uint32_t m = 0; m < 2; ++m)
    for (uint32_t n = 0; n < 4; ++n)
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t row = row0 + warp_row + 16 * m + group + 8 * (i / 2),
                       column = column0 + warp_column + 8 * n + pair * 2 + i % 2;
        if (row >= a.rows || column >= a.w.n) continue;
        float* y = a.y + uint64_t{row} * a.y_stride + column;
        *y = a.add ? *y + d[m][n][i] : d[m][n][i];
      }
}

// Grid: x = column tiles, y = row tiles.
template <Format kFormat, typename Block>
TIE_DEVICE void gemm(Block& b, const GemmArgs& a) {
  gemm_rows<kFormat>(b, a, b.block_y() * kGemmTile);
}

// Rows that chose the same expert, at most a tile of them; rows == 0: nothing.
struct ExpertTile {
  uint32_t expert, first, rows;
};

// The product's w is a stack of experts of n outputs; its rows are grouped by expert (experts.h).
struct ExpertGemmArgs {
  GemmArgs product;
  const ExpertTile* tiles = nullptr;
  uint32_t n = 0;
};

// Grid: x = column tiles of one expert, y = the most tiles that there may be.
template <Format kFormat, typename Block>
TIE_DEVICE void gemm_expert(Block& b, const ExpertGemmArgs& a) {
  const ExpertTile tile = a.tiles[b.block_y()];
  if (tile.rows == 0) return;
  GemmArgs own = a.product;
  own.w = rows_of<kFormat>(a.product.w, uint64_t{tile.expert} * a.n, a.n);
  own.rows = tile.first + tile.rows;
  gemm_rows<kFormat>(b, own, tile.first);
}

}  // namespace tie::bones::cuda
