#include "inference/bones/ops/linear.h"

#include <algorithm>

namespace tie::bones {
namespace {

// [first, last) of `total` units for one thread.
struct Share {
  uint32_t first, last;
  Share(uint32_t total, uint32_t thread, uint32_t n_threads)
      : first(static_cast<uint32_t>(uint64_t{total} * thread / n_threads)),
        last(static_cast<uint32_t>(uint64_t{total} * (thread + 1) / n_threads)) {}
};

uint32_t pairs_of(const PackedMatrix& w) {
  return (w.strips() + 1) / 2;
}

}  // namespace

void linear(const KernelSet& kernels, std::span<const LinearTarget> targets, const Activations& x, uint32_t thread,
            uint32_t n_threads, std::byte* scratch) {
  uint32_t total = 0;
  for (const LinearTarget& target : targets) total += pairs_of(target.w);
  const Share share(total, thread, n_threads);
  uint32_t at = 0;
  for (const LinearTarget& target : targets) {
    const uint32_t pairs = pairs_of(target.w);
    const uint32_t first = std::max(share.first, at), last = std::min(share.last, at + pairs);
    if (first < last) {
      const uint32_t strip = 2 * (first - at), end = std::min(2 * (last - at), target.w.strips());
      kernels.matmul({target.w, &x, strip, end - strip, target.out + size_t{strip} * kStrip, target.out_stride,
                      target.add, scratch});
    }
    at += pairs;
  }
}

ColumnRange columns_of(const PackedMatrix& w, uint32_t thread, uint32_t n_threads) {
  const Share share(pairs_of(w), thread, n_threads);
  return {std::min(share.first * 2 * kStrip, w.n), std::min(share.last * 2 * kStrip, w.n)};
}

void gated(const KernelSet& kernels, const PackedMatrix& gate, const PackedMatrix& up, bool gelu, const Activations& x,
           Activations& out, uint32_t thread, uint32_t n_threads, ThreadScratch& scratch) {
  const uint32_t pairs = pairs_of(gate), unit = out.group;  // a pair of strips gives one block of `out`
  const Share share((pairs + unit - 1) / unit, thread, n_threads);
  const uint32_t last = std::min(share.last * unit, pairs),
                 step = std::max(1u, std::min(kGateFloats / (x.rows * 32), kGateColumns / 32) / unit) * unit;
  for (uint32_t pair = share.first * unit; pair < last; pair += step) {
    const uint32_t n = std::min(step, last - pair), columns = n * 32;
    kernels.matmul({gate, &x, 2 * pair, 2 * n, scratch.gate, columns, false, scratch.matmul});
    kernels.matmul({up, &x, 2 * pair, 2 * n, scratch.up, columns, false, scratch.matmul});
    (gelu ? kernels.gelu_gate : kernels.silu_gate)(scratch.gate, scratch.up, x.rows * columns);
    for (uint32_t tile = 0; tile < out.tiles(); ++tile) {
      QuantizeJob job;
      job.x = scratch.gate;
      job.x_first_block = pair;
      job.x_stride = columns;
      job.tile = tile;
      job.first_block = pair;
      job.n_blocks = n;
      job.out = &out;
      kernels.quantize(job);
    }
  }
}

void shape_activations(const KernelSet& kernels, Activations& acts, uint32_t rows, bool want_codes, bool want_f32) {
  acts.rows = rows;
  acts.rows_per_tile = kernels.tile_rows ? kernels.tile_rows(rows) : rows_per_tile(rows);
  acts.want_codes = want_codes;
  acts.want_f32 = want_f32;
}

void norm_quantize(const KernelSet& kernels, const float* x, size_t x_stride, const float* weight, float epsilon,
                   Activations& acts, uint32_t thread, uint32_t n_threads, ThreadScratch& scratch) {
  const bool by_tiles = acts.tiles() >= 2 * n_threads;
  const Share tiles(acts.tiles(), by_tiles ? thread : 0, by_tiles ? n_threads : 1),
      groups((acts.blocks() + acts.group - 1) / acts.group, by_tiles ? 0 : thread, by_tiles ? 1 : n_threads);
  const uint32_t first_block = groups.first * acts.group,
                 last_block = std::min(groups.last * acts.group, acts.blocks());
  for (uint32_t tile = tiles.first; tile < tiles.last; ++tile) {
    const uint32_t first = tile * acts.rows_per_tile, last = std::min(first + acts.rows_per_tile, acts.rows);
    for (uint32_t row = first; row < last && weight; ++row)
      scratch.row_scale[row] = kernels.rms_scale(x + row * x_stride, acts.k, epsilon);
    QuantizeJob job;
    job.x = x;
    job.x_stride = x_stride;
    job.row_scale = weight ? scratch.row_scale : nullptr;
    job.weight = weight;
    job.tile = tile;
    job.first_block = first_block;
    job.n_blocks = last_block - first_block;
    job.out = &acts;
    kernels.quantize(job);
  }
}

}  // namespace tie::bones
