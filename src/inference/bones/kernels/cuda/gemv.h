// Products for decode: rows of activations, four at a time, times a matrix, weights dequantised as they arrive. The
// norm of the input, the gate's activation and the addition to the residual stream are part of the product. Limit:
// memory bandwidth, so bytes under way are what counts: each warp streams four rows of weights (with a gate, two of
// each matrix), each lane a block of 32 inputs of all four before it uses any; the first are asked for before the input
// is there. With experts each row has its own matrix, one of a stack.
#pragma once
#include "inference/bones/kernels/cuda/weight_formats.h"

namespace tie::bones::cuda {

inline constexpr uint32_t kGemvThreads = 128, kGemvWarps = kGemvThreads / kWarp;
inline constexpr uint32_t kGemvStreams = 4;  // rows of weights that a warp reads at a time
inline constexpr uint32_t kGemvRows = 4;

// Outputs of a block, and blocks for n of them.
TIE_DEVICE constexpr uint32_t gemv_outputs(bool gated) {
  return kGemvWarps * kGemvStreams / (gated ? 2 : 1);
}
TIE_DEVICE constexpr uint32_t gemv_blocks(uint32_t n, bool gated) {
  return (n + gemv_outputs(gated) - 1) / gemv_outputs(gated);
}

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

// Shared memory: x in chunks, four floats of padding for each 32 so that lanes reading their own block do not collide;
// then the block's sums. Fewer rows have longer chunks.
inline constexpr uint32_t kGemvBlocks = 256;  // of 32 inputs, in shared memory at a time
inline constexpr uint32_t kGemvXFloats = kGemvBlocks * 36;
inline constexpr uint32_t kGemvSharedBytes = kGemvXFloats * 4 + 128;

// A block of each stream, as it lies in memory: both halves, or one after the other where registers would not do.
template <Format kFormat, uint32_t kRows>
struct RawBlocks {
  static constexpr uint32_t kHalves = block_bytes(kFormat).codes > (kRows == 1 ? 64 : 32) ? 1 : 2;
  RawHalf<kFormat> raw[kGemvStreams][kHalves];
};

// What a warp reads: row `output` of a matrix.
struct WeightStream {
  Matrix m;
  uint32_t output;
};

template <Format kFormat, uint32_t kRows>
TIE_DEVICE void load_streams(const WeightStream (&streams)[kGemvStreams], uint32_t block, uint32_t first_half,
                             RawBlocks<kFormat, kRows>& to) {
  TIE_UNROLL
  for (uint32_t s = 0; s < kGemvStreams; ++s) {
    TIE_UNROLL
    for (uint32_t half = 0; half < RawBlocks<kFormat, kRows>::kHalves; ++half)
      to.raw[s][half] = load_raw<kFormat>(streams[s].m, streams[s].output, block, first_half + half);
  }
}

// A block's inputs, `at` in units of 16 bytes of x, by the streams' weights.
template <Format kFormat, uint32_t kRows, typename Shared>
TIE_DEVICE void add_products(const RawBlocks<kFormat, kRows>& raw, uint32_t first_half, uint32_t rows,
                             uint32_t row_stride, const Shared& x, uint32_t at, float (&sum)[kGemvStreams][kRows]) {
  TIE_UNROLL
  for (uint32_t half = 0; half < RawBlocks<kFormat, kRows>::kHalves; ++half) {
    float w[kGemvStreams][16];
    TIE_UNROLL
    for (uint32_t s = 0; s < kGemvStreams; ++s) decode<kFormat>(raw.raw[s][half], first_half + half, w[s]);
    TIE_UNROLL
    for (uint32_t row = 0; row < kRows; ++row) {
      if (row >= rows) continue;
      TIE_UNROLL
      for (uint32_t v = 0; v < 4; ++v) {
        const Bytes16 four = x[row * row_stride + at + 4 * (first_half + half) + v];
        TIE_UNROLL
        for (uint32_t i = 0; i < 4; ++i) {
          TIE_UNROLL
          for (uint32_t s = 0; s < kGemvStreams; ++s) sum[s][row] += w[s][4 * v + i] * as_float(four.word[i]);
        }
      }
    }
  }
}

// Inputs [32 * from, 32 * (from + n)) of the rows to shared memory, scaled and weighed by the norm.
template <uint32_t kRows, typename Block, typename Shared>
TIE_DEVICE void stage_inputs(Block& b, const GemvArgs& a, uint32_t from, uint32_t n, uint32_t row_floats,
                             const float (&scale)[kRows], const Shared& x) {
  TIE_UNROLL
  for (uint32_t row = 0; row < kRows; ++row) {
    if (row >= a.rows) continue;
    for (uint32_t i = b.thread(); i < n * 32; i += kGemvThreads) {
      const float v = a.x[uint64_t{row} * a.x_stride + from * 32 + i] * scale[row];
      x[row * row_floats + i + i / 32 * 4] = a.norm ? v * a.norm[from * 32 + i] : v;
    }
  }
}

// At most kRows rows; the outputs of the `place`-th block.
template <Format kFormat, uint32_t kRows, typename Block>
TIE_DEVICE void gemv_rows(Block& b, const GemvArgs& a, uint32_t place) {
  auto x = b.template shared<float>(0, kGemvXFloats);
  auto x16 = b.template shared<Bytes16>(0, kGemvXFloats / 4);
  const uint32_t warp = b.thread() / kWarp, lane = b.thread() % kWarp, blocks = a.w.k / 32;
  const bool is_gated = a.gate != Gate::kNone;
  const uint32_t first_output = place * gemv_outputs(is_gated) + warp * (kGemvStreams / (is_gated ? 2 : 1));
  WeightStream streams[kGemvStreams];  // past the last output the last one again, for nobody
  TIE_UNROLL
  for (uint32_t s = 0; s < kGemvStreams; ++s) {
    const bool up = is_gated && s % 2 != 0;
    const uint32_t output = first_output + (is_gated ? s / 2 : s);
    streams[s] = {{up ? a.up.codes : a.w.codes, up ? a.up.high : a.w.high, up ? a.up.scales : a.w.scales, a.w.n, a.w.k},
                  output < a.w.n ? output : a.w.n - 1};
  }
  float scale[kRows];
  TIE_UNROLL
  for (uint32_t row = 0; row < kRows; ++row) {
    scale[row] = 1.0f;
    if (!a.norm || row >= a.rows) continue;
    float square = 0;
    for (uint32_t i = b.thread(); i < a.w.k; i += kGemvThreads) {
      const float v = a.x[uint64_t{row} * a.x_stride + i];
      square += v * v;
    }
    scale[row] = 1.0f / sqrtf(block_sum(b, square, kGemvXFloats * 4) / static_cast<float>(a.w.k) + a.epsilon);
  }
  // Blocks that a lane asks for together: small ones two at a time.
  constexpr uint32_t kAtOnce = kRows == 1 && block_bytes(kFormat).codes <= 32 ? 2 : 1;
  constexpr uint32_t kSteps = 2 / RawBlocks<kFormat, kRows>::kHalves;
  const uint32_t chunk = kGemvBlocks / (a.rows <= 2 ? a.rows : kGemvRows);
  float sum[kGemvStreams][kRows] = {};
  for (uint32_t from = 0; from < blocks; from += chunk) {
    const uint32_t n = blocks - from < chunk ? blocks - from : chunk, end = from + n;
    RawBlocks<kFormat, kRows> raw[kAtOnce] = {};
    auto ask = [&](uint32_t block) {  // past the end the last one again, for nobody: no branch stands between loads
      TIE_UNROLL
      for (uint32_t j = 0; j < kAtOnce; ++j)
        load_streams(streams, block + j * kWarp < end ? block + j * kWarp : end - 1, 0, raw[j]);
    };
    if (from + lane < end) ask(from + lane);
    b.sync();
    stage_inputs(b, a, from, n, chunk * 36, scale, x);
    b.sync();
    for (uint32_t block = from + lane; block < end; block += kAtOnce * kWarp) {
      if (block >= from + kWarp) ask(block);
      TIE_UNROLL
      for (uint32_t j = 0; j < kAtOnce; ++j) {
        if (j != 0 && block + j * kWarp >= end) continue;
        TIE_UNROLL
        for (uint32_t step = 0; step < kSteps; ++step) {
          if (step != 0) load_streams(streams, block, step, raw[j]);
          add_products(raw[j], step, a.rows, chunk * 9, x16, (block + j * kWarp - from) * 9, sum);
        }
      }
    }
  }
  TIE_UNROLL
  for (uint32_t row = 0; row < kRows; ++row) {
    if (row >= a.rows) continue;
    float total[kGemvStreams];
    TIE_UNROLL
    for (uint32_t s = 0; s < kGemvStreams; ++s) total[s] = warp_sum(b, sum[s][row]);
    TIE_UNROLL
    for (uint32_t s = 0; s < kGemvStreams; ++s) {
      const uint32_t output = first_output + s;
      if (lane != 0 || output >= a.w.n || (is_gated && s >= kGemvStreams / 2)) continue;
      const float v =
          is_gated ? gated(a.gate, total[2 * s % kGemvStreams], total[(2 * s + 1) % kGemvStreams]) : total[s];
      float* y = a.y + uint64_t{row} * a.y_stride + output;
      *y = a.add ? *y + v : v;
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

// Grid: x = gemv_blocks, y = rows in fours.
template <Format kFormat, typename Block>
TIE_DEVICE void gemv(Block& b, const GemvArgs& a) {
  const uint32_t first = b.block_y() * kGemvRows, left = a.rows - first;
  gemv_rows<kFormat, kGemvRows>(b, rows_from(a, first, left < kGemvRows ? left : kGemvRows), b.block_x());
}

// The same for a single row, whose registers leave room for more warps. Grid: x = gemv_blocks.
template <Format kFormat, typename Block>
TIE_DEVICE void gemv_one(Block& b, const GemvArgs& a) {
  gemv_rows<kFormat, 1>(b, rows_from(a, 0, 1), b.block_x());
}

// Three products of one row, queries, keys and values, which are too small to fill a GPU one after another.
struct GemvThreeArgs {
  GemvArgs first;
  Matrix second, third;
  float *second_y = nullptr, *third_y = nullptr;
};

// Grid: x = gemv_blocks of each, one after another.
template <Format kFormat, typename Block>
TIE_DEVICE void gemv_three(Block& b, const GemvThreeArgs& a) {
  GemvArgs own = rows_from(a.first, 0, 1);
  uint32_t place = b.block_x();
  const uint32_t before_second = gemv_blocks(a.first.w.n, false),
                 before_third = before_second + gemv_blocks(a.second.n, false);
  if (place >= before_third) {
    own.w = a.third, own.y = a.third_y, place -= before_third;
  } else if (place >= before_second) {
    own.w = a.second, own.y = a.second_y, place -= before_second;
  }
  gemv_rows<kFormat, 1>(b, own, place);
}

// Pairs of a row and one of the experts it chose. The product's w and up are stacks; n is one expert's outputs.
struct ExpertGemvArgs {
  GemvArgs product;                  // y: a row for each pair
  const uint32_t* chosen = nullptr;  // [pairs]
  uint32_t n = 0;
  uint32_t pairs_of_row = 1;  // that share a row of x
};

// Grid: x = gemv_blocks, y = pairs.
template <Format kFormat, typename Block>
TIE_DEVICE void gemv_expert(Block& b, const ExpertGemvArgs& a) {
  const uint32_t pair = b.block_y(), expert = a.chosen[pair];
  GemvArgs own = a.product;
  own.w = rows_of<kFormat>(a.product.w, uint64_t{expert} * a.n, a.n);
  if (own.gate != Gate::kNone) own.up = rows_of<kFormat>(a.product.up, uint64_t{expert} * a.n, a.n);
  own.x += uint64_t{pair / a.pairs_of_row} * own.x_stride;
  own.y += uint64_t{pair} * own.y_stride;
  own.rows = 1;
  gemv_rows<kFormat, 1>(b, own, b.block_x());
}

}  // namespace tie::bones::cuda
