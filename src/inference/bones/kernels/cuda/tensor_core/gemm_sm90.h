// Products on Hopper: two warpgroups of 64 rows each take stages from the ring by wgmma, one stage behind the next in
// flight. Tile 128 x 128, sums in registers. Twin: gemm.h.
#pragma once
#include "inference/bones/kernels/cuda/tensor_core/gemm_pipeline.h"

namespace tie::bones::cuda {

inline constexpr uint32_t kGemm90Threads = (kFillGroups + 2) * kRingGroup;

// Grid: x = tiles of 128 outputs, y = tiles of 128 rows.
template <Format kFormat, typename Block>
TIE_DEVICE void gemm_sm90(Block& b, const FastGemmArgs& a) {
  const Ring ring{b.shared_base()};
  open_ring<kFormat>(b, ring, 8);  // a stage is released by eight warps
  b.sync();
  const uint32_t group = b.thread() / kRingGroup;
  if (group < kFillGroups) return fill_ring<kFormat>(b, a, ring);

  const uint32_t half = group - kFillGroups, lane = b.thread() % kWarp, steps = ring_steps(a.product);
  float d[64] = {};
  for (uint32_t step = 0; step < steps; ++step) {
    const uint32_t stage = step % kRingStages;
    b.barrier_wait(ring.full(stage), step / kRingStages % 2);
    b.sync_warp();
    const uint32_t x = ring.x(stage) + half * 64 * kTileRowBytes, w = ring.w(stage);
    b.hold(d);
    b.begin_products();
    TIE_UNROLL
    for (uint32_t i = 0; i < kRingInputs / 16; ++i)
      b.template multiply<true>(d, wgmma_descriptor(x + i * kStepBytes, 16), wgmma_descriptor(w + i * kStepBytes, 16),
                                true);
    b.commit_products();
    b.template wait_products<1>();
    if (step != 0 && lane == 0) b.barrier_arrive(ring.empty((step - 1) % kRingStages));
  }
  b.template wait_products<0>();
  b.hold(d);

  const uint32_t warp = b.thread() % kRingGroup / kWarp;
  const uint32_t row0 = b.block_y() * kRingRows + half * 64 + warp * 16 + lane / 4,
                 output0 = b.block_x() * kRingOutputs + lane % 4 * 2;
  TIE_UNROLL
  for (uint32_t part = 0; part < 4; ++part) {  // of 32 columns
    const auto at = [&](uint32_t i) {
      return place_of(a.product, row0 + i % 4 / 2 * 8, output0 + part * 32 + i / 4 * 8 + i % 2);
    };
    float own[16];
    TIE_UNROLL
    for (uint32_t i = 0; i < 16; ++i) own[i] = d[part * 16 + i];
    put_sums(a.product, own, at);
  }
}

}  // namespace tie::bones::cuda
