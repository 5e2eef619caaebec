// Matrix products spread over the threads of a pool: each thread takes a contiguous share of column pairs of all
// targets, so its weights are one stream.
#pragma once
#include <cstdint>
#include <span>

#include "inference/bones/kernels/kernel_set.h"
#include "inference/bones/ops/workspace.h"

namespace tie::bones {

struct LinearTarget {
  PackedMatrix w;
  float* out = nullptr;  // [row][out_stride]
  size_t out_stride = 0;
  bool add = false;
};

// The share of thread `thread` of `n_threads`. All targets take the same input rows.
void linear(const KernelSet& kernels, std::span<const LinearTarget> targets, const Activations& x, uint32_t thread,
            uint32_t n_threads, std::byte* scratch);

// The columns of `w`, when it is the only target, that thread `thread` computes.
struct ColumnRange {
  uint32_t first, last;
};
ColumnRange columns_of(const PackedMatrix& w, uint32_t thread, uint32_t n_threads);

// out = quantised activation(x gate) * (x up): the two products, the activation and the quantisation of the next
// product's input in one pass over column pairs.
void gated(const KernelSet& kernels, const PackedMatrix& gate, const PackedMatrix& up, bool gelu, const Activations& x,
           Activations& out, uint32_t thread, uint32_t n_threads, ThreadScratch& scratch);

// Prepares `acts` for a batch of `rows`.
void shape_activations(const KernelSet& kernels, Activations& acts, uint32_t rows, bool want_codes, bool want_f32);

// acts = quantised (rms_norm(x) * weight), or of x itself when weight is null; this thread's share. Few rows are split
// along k, many by tiles.
void norm_quantize(const KernelSet& kernels, const float* x, size_t x_stride, const float* weight, float epsilon,
                   Activations& acts, uint32_t thread, uint32_t n_threads, ThreadScratch& scratch);

}  // namespace tie::bones
