// The first half of a product on Hopper or Blackwell: tiles of 128 rows of activations and 128 outputs, 64 inputs at a
// time, go through a ring of stages in shared memory. TMA brings activations, and weights that are bf16 already; other
// weights are dequantised by two warpgroups in turn, so that one converts while the other waits for its codes. The
// other half (gemm_sm90.h, gemm_sm100.h) empties the ring. Twin: gemm.h.
#pragma once
#include "inference/bones/kernels/cuda/gemm.h"
#include "inference/bones/kernels/cuda/tensor_core/descriptors.h"

namespace tie::bones::cuda {

inline constexpr uint32_t kRingStages = 4, kRingRows = 128, kRingOutputs = 128, kRingInputs = 64;
inline constexpr uint32_t kRingTileBytes = 128 * kTileRowBytes;  // of the one operand or the other
inline constexpr uint32_t kRingGroup = 128;                      // threads of a warpgroup
inline constexpr uint32_t kFillGroups = 2;                       // warpgroups that fill
// Room to align the ring, the ring, barriers and a word for tensor memory's address.
inline constexpr uint32_t kRingSharedBytes = kAtomBytes + kRingStages * 2 * kRingTileBytes + 256;

struct FastGemmArgs {
  TensorMap x_map, w_map;  // boxes of 64 inputs by 128 rows; w_map of bf16 weights alone
  GemmArgs product;
};

struct Ring {
  uint32_t base;
  TIE_DEVICE uint32_t x(uint32_t stage) const { return base + stage * 2 * kRingTileBytes; }
  TIE_DEVICE uint32_t w(uint32_t stage) const { return x(stage) + kRingTileBytes; }
  TIE_DEVICE uint32_t full(uint32_t stage) const { return x(kRingStages) + stage * 8; }
  TIE_DEVICE uint32_t empty(uint32_t stage) const { return full(kRingStages) + stage * 8; }
  TIE_DEVICE uint32_t done() const { return empty(kRingStages); }  // gemm_sm100.h
  TIE_DEVICE uint32_t word() const { return done() + 8; }
};

TIE_DEVICE uint32_t ring_steps(const GemmArgs& a) {
  return (a.w.k + kRingInputs - 1) / kRingInputs;
}

// Barriers, by one thread; the block's sync follows.
template <Format kFormat, typename Block>
TIE_DEVICE void open_ring(Block& b, const Ring& ring, uint32_t releases) {
  if (b.thread() != 0) return;
  // TMA is announced by one arrival; threads that dequantise arrive, too.
  const uint32_t fills = kFormat == Format::kBf16 ? 1 : 1 + kRingGroup;
  for (uint32_t stage = 0; stage < kRingStages; ++stage) {
    b.barrier_init(ring.full(stage), fills);
    b.barrier_init(ring.empty(stage), releases);
  }
  b.barrier_init(ring.done(), 1);
  b.publish_barriers();
}

// One thread's output: its 64 inputs of a step, dequantised to bf16; zeros outside the matrix.
template <Format kFormat, typename Block>
TIE_DEVICE void dequantise_row(Block& b, const Matrix& w, uint32_t output, uint32_t step, uint32_t tile, uint32_t row) {
  TIE_UNROLL
  for (uint32_t part = 0; part < 4; ++part) {  // of 16 inputs
    const uint32_t block = step * 2 + part / 2;
    float v[16] = {};
    if (output < w.n && block < w.k / 32) load_half_block<kFormat>(w, output, block, part % 2, v);
    TIE_UNROLL
    for (uint32_t piece = 0; piece < 2; ++piece) {
      Bytes16 out;
      TIE_UNROLL
      for (uint32_t i = 0; i < 4; ++i) {
        const float* pair = v + 8 * piece + 2 * i;
        out.word[i] = bf16_bits(pair[0]) | bf16_bits(pair[1]) << 16;
      }
      b.store_16(tile + swizzled(row, part * 2 + piece), out);
    }
  }
}

// The first kFillGroups warpgroups.
template <Format kFormat, typename Block>
TIE_DEVICE void fill_ring(Block& b, const FastGemmArgs& a, const Ring& ring) {
  const uint32_t group = b.thread() / kRingGroup, lane = b.thread() % kRingGroup;
  const uint32_t row0 = b.block_y() * kRingRows, output0 = b.block_x() * kRingOutputs;
  constexpr bool kByTma = kFormat == Format::kBf16;
  if (kByTma && b.thread() != 0) return;
  for (uint32_t step = group; step < ring_steps(a.product); step += kByTma ? 1 : kFillGroups) {
    const uint32_t stage = step % kRingStages;
    // The first round finds every stage empty: the phase before the first counts as over.
    b.barrier_wait(ring.empty(stage), (step / kRingStages + 1) % 2);
    if (lane == 0) {
      b.barrier_expect(ring.full(stage), kByTma ? 2 * kRingTileBytes : kRingTileBytes);
      b.load_tile(ring.x(stage), a.x_map, ring.full(stage), step * kRingInputs, row0);
      if (kByTma) b.load_tile(ring.w(stage), a.w_map, ring.full(stage), step * kRingInputs, output0);
    }
    if constexpr (!kByTma) {
      dequantise_row<kFormat>(b, a.product.w, output0 + lane, step, ring.w(stage), lane);
      b.publish_stores();
      b.barrier_arrive(ring.full(stage));
    }
  }
}

// Where an output of a row goes; null outside the matrix.
TIE_DEVICE float* place_of(const GemmArgs& a, uint32_t row, uint32_t output) {
  return row < a.rows && output < a.w.n ? a.y + uint64_t{row} * a.y_stride + output : nullptr;
}

// at(i): where the i-th sum of this thread goes. What is added to is read before anything is written, so that one wait
// serves all.
template <uint32_t kN, typename At>
TIE_DEVICE void put_sums(const GemmArgs& a, float (&sum)[kN], At at) {
  if (a.add) {
    float before[kN];
    TIE_UNROLL
    for (uint32_t i = 0; i < kN; ++i) before[i] = at(i) ? *at(i) : 0.0f;
    TIE_UNROLL
    for (uint32_t i = 0; i < kN; ++i) sum[i] += before[i];
  }
  TIE_UNROLL
  for (uint32_t i = 0; i < kN; ++i)
    if (at(i)) *at(i) = sum[i];
}

}  // namespace tie::bones::cuda
