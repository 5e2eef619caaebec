// Products for decode: rows of activations, four at a time, times a matrix, weights dequantised as they arrive. The
// norm of the input, the gate's activation and the addition to the residual stream are part of the product. Limit:
// memory bandwidth; each warp streams two rows of weights, each lane a block of 32 inputs at a time. With experts each
// row has its own matrix, one of a stack.
#pragma once
#include "inference/bones/kernels/cuda/weight_formats.h"

namespace tie::bones::cuda {

inline constexpr uint32_t kGemvThreads = 128, kGemvOutputs = 8;  // a warp has two outputs
inline constexpr uint32_t kGemvRows = 4;
inline constexpr uint32_t kGemvChunk = 2048;  // inputs in shared memory at a time

enum class Gate : uint32_t { kNone, kSilu, kGelu };

struct GemvArgs {
  Matrix w, up;                 // up: with a gate, the second matrix: y = gate(x w) * (x up)
  const float* x = nullptr;     // [rows][x_stride]
  const float* norm = nullptr;  // null, or the weights of an RMS norm of x
  float* y = nullptr;           // [rows][y_stride]
  uint32_t rows = 0, x_stride = 0, y_stride = 0;
  float epsilon = 0;
  uint32_t add = 0;  // y += instead of y =
  Gate gate = Gate::kNone;
};

TIE_DEVICE float gated(Gate gate, float g, float up) {
  if (gate == Gate::kSilu) return g / (1.0f + expf(-g)) * up;
  return 0.5f * g * (1.0f + tanhf(0.7978845608028654f * (g + 0.044715f * g * g * g))) * up;
}

// Shared memory: x in chunks, one float of padding for each 32 so that lanes reading their own block do not collide;
// then the block's sums.
inline constexpr uint32_t kGemvXFloats = kGemvRows * (kGemvChunk + kGemvChunk / 32);
inline constexpr uint32_t kGemvSharedBytes = kGemvXFloats * 4 + 128;

template <Format kFormat, typename Block, typename Shared>
TIE_DEVICE void gemv_block(const Matrix& w, uint32_t output, uint32_t block, uint32_t first_block, uint32_t rows,
                           const Shared& x, float (&sum)[kGemvRows]) {
  for (uint32_t half = 0; half < 2; ++half) {
    float weights[16];
    load_half_block<kFormat>(w, output, block, half, weights);
    const uint32_t at = (block - first_block) * 33 + 16 * half;
    TIE_UNROLL
    for (uint32_t row = 0; row < kGemvRows; ++row) {
      if (row >= rows) continue;
      for (uint32_t i = 0; i < 16; ++i) sum[row] += weights[i] * x[row * (kGemvChunk + kGemvChunk / 32) + at + i];
    }
  }
}

// Up to four rows.
template <Format kFormat, typename Block>
TIE_DEVICE void gemv_rows(Block& b, const GemvArgs& a) {
  auto x = b.template shared<float>(0, kGemvXFloats);
  const uint32_t warp = b.thread() / kWarp, lane = b.thread() % kWarp, k = a.w.k;
  float scale[kGemvRows];
  TIE_UNROLL
  for (uint32_t row = 0; row < kGemvRows; ++row) {
    scale[row] = 1.0f;
    if (!a.norm || row >= a.rows) continue;
    float square = 0;
    for (uint32_t i = b.thread(); i < k; i += kGemvThreads) {
      const float v = a.x[uint64_t{row} * a.x_stride + i];
      square += v * v;
    }
    scale[row] = 1.0f / sqrtf(block_sum(b, square, kGemvXFloats * 4) / static_cast<float>(k) + a.epsilon);
  }
  float sum[2][kGemvRows] = {}, up[2][kGemvRows] = {};
  const uint32_t first_output = b.block_x() * kGemvOutputs + warp * 2;
  for (uint32_t from = 0; from < k; from += kGemvChunk) {
    const uint32_t n = k - from < kGemvChunk ? k - from : kGemvChunk;
    b.sync();
    TIE_UNROLL
    for (uint32_t row = 0; row < kGemvRows; ++row) {
      if (row >= a.rows) continue;
      for (uint32_t i = b.thread(); i < n; i += kGemvThreads) {
        const float v = a.x[uint64_t{row} * a.x_stride + from + i] * scale[row];
        x[row * (kGemvChunk + kGemvChunk / 32) + i + i / 32] = a.norm ? v * a.norm[from + i] : v;
      }
    }
    b.sync();
    for (uint32_t block = from / 32 + lane; block < (from + n) / 32; block += kWarp) {
      TIE_UNROLL
      for (uint32_t o = 0; o < 2; ++o) {
        if (first_output + o >= a.w.n) continue;
        gemv_block<kFormat, Block>(a.w, first_output + o, block, from / 32, a.rows, x, sum[o]);
        if (a.gate != Gate::kNone)
          gemv_block<kFormat, Block>(a.up, first_output + o, block, from / 32, a.rows, x, up[o]);
      }
    }
  }
  TIE_UNROLL
  for (uint32_t o = 0; o < 2; ++o) {
    TIE_UNROLL
    for (uint32_t row = 0; row < kGemvRows; ++row) {
      if (row >= a.rows) continue;
      float total = warp_sum(b, sum[o][row]);
      if (a.gate != Gate::kNone) total = gated(a.gate, total, warp_sum(b, up[o][row]));
      if (lane != 0 || first_output + o >= a.w.n) continue;
      float* y = a.y + uint64_t{row} * a.y_stride + first_output + o;
      *y = a.add ? *y + total : total;
    }
  }
}

// The arguments for `rows` rows from `first` on.
TIE_DEVICE GemvArgs rows_from(const GemvArgs& a, uint32_t first, uint32_t rows) {
  GemvArgs own = a;
  own.x += uint64_t{first} * a.x_stride;
  own.y += uint64_t{first} * a.y_stride;
  own.rows = rows;
  return own;
}

// Grid: x = (n + 7) / 8 blocks of 128 threads, y = rows in fours.
template <Format kFormat, typename Block>
TIE_DEVICE void gemv(Block& b, const GemvArgs& a) {
  const uint32_t first = b.block_y() * kGemvRows, left = a.rows - first;
  gemv_rows<kFormat>(b, rows_from(a, first, left < kGemvRows ? left : kGemvRows));
}

// Pairs of a row and one of the experts it chose. The product's w and up are stacks; n is one expert's outputs.
struct ExpertGemvArgs {
  GemvArgs product;                  // y: a row for each pair
  const uint32_t* chosen = nullptr;  // [pairs]
  uint32_t n = 0;
  uint32_t pairs_of_row = 1;  // that share a row of x
};

// Grid: x = (n + 7) / 8, y = pairs.
template <Format kFormat, typename Block>
TIE_DEVICE void gemv_expert(Block& b, const ExpertGemvArgs& a) {
  const uint32_t pair = b.block_y(), expert = a.chosen[pair];
  GemvArgs own = a.product;
  own.w = rows_of<kFormat>(a.product.w, uint64_t{expert} * a.n, a.n);
  if (own.gate != Gate::kNone) own.up = rows_of<kFormat>(a.product.up, uint64_t{expert} * a.n, a.n);
  own.x += uint64_t{pair / a.pairs_of_row} * own.x_stride;
  own.y += uint64_t{pair} * own.y_stride;
  own.rows = 1;
  gemv_rows<kFormat>(b, own);
}

}  // namespace tie::bones::cuda
