// Products on Blackwell: one thread of the third warpgroup multiplies stages of the ring into tensor memory by tcgen05;
// then the warpgroup reads the sums, a row for each thread. Tile 128 x 128. Twin: gemm.h.
#pragma once
#include "inference/bones/kernels/cuda/tensor_core/gemm_pipeline.h"

namespace tie::bones::cuda {

inline constexpr uint32_t kGemm100Threads = (kFillGroups + 1) * kRingGroup;

template <typename Block>
TIE_DEVICE void multiply_ring(Block& b, const Ring& ring, uint32_t steps, uint32_t sums) {
  for (uint32_t step = 0; step < steps; ++step) {
    const uint32_t stage = step % kRingStages;
    b.barrier_wait(ring.full(stage), step / kRingStages % 2);
    b.after_sync();
    TIE_UNROLL
    for (uint32_t i = 0; i < kRingInputs / 16; ++i)
      b.multiply_tile(sums, tcgen05_descriptor(ring.x(stage) + i * kStepBytes),
                      tcgen05_descriptor(ring.w(stage) + i * kStepBytes), tcgen05_instruction(kRingRows, kRingOutputs),
                      step + i != 0);
    b.arrive_after_products(ring.empty(stage));
  }
  b.arrive_after_products(ring.done());
}

// Grid: x = tiles of 128 outputs, y = tiles of 128 rows.
template <Format kFormat, typename Block>
TIE_DEVICE void gemm_sm100(Block& b, const FastGemmArgs& a) {
  const Ring ring{b.shared_base()};
  const uint32_t group = b.thread() / kRingGroup, warp = b.thread() % kRingGroup / kWarp, lane = b.thread() % kWarp;
  open_ring<kFormat>(b, ring, 1);
  if (group == kFillGroups && warp == 0) b.take_tensor_memory(ring.word(), kRingOutputs);
  b.before_sync();
  b.sync();
  b.after_sync();
  if (group < kFillGroups) return fill_ring<kFormat>(b, a, ring);

  const uint32_t sums = b.load_word(ring.word());
  if (b.thread() % kRingGroup == 0) multiply_ring(b, ring, ring_steps(a.product), sums);
  b.barrier_wait(ring.done(), 0);
  b.sync_warp();
  b.after_sync();
  const uint32_t row = b.block_y() * kRingRows + warp * 32 + lane, output0 = b.block_x() * kRingOutputs;
  for (uint32_t part = 0; part < kRingOutputs / 32; ++part) {
    float d[32];
    b.sync_warp();  // lanes whose row ends sooner come back to what the warp reads as one
    b.read_tensor_memory(d, sums + (warp * 32 << 16) + part * 32);
    put_sums(a.product, d, [&](uint32_t i) { return place_of(a.product, row, output0 + part * 32 + i); });
  }
  b.before_sync();
  b.sync_group(1);
  if (warp == 0) b.give_tensor_memory(sums, kRingOutputs);
}

}  // namespace tie::bones::cuda
