// The table of compute kernels of one instruction set. Everything above this line (ops/, model/) is the same for all of
// them. Rules that make results independent of the batch and equal between sets:
//  - matrix products: exact int32 sums per block; per output  acc = fma(float(dot), w_scale * x_scale, acc); then, with
//  minima, acc = fma(w_min, x_sum, acc); blocks in order of k;
//  - Q4 products: exact int32 sums per scale group of up to kScaleBlocks blocks, sum = total of low(d) * s + high(d) *
//  m, where d = start4 + dot of the raw codes has the dot with (code - 8) in its low 16 bits and 8 times the sum of the
//  codes (less one where the low half is negative) in its high ones; per output acc = fma(float(sum), x_scale, acc), at
//  the end acc * unit;
//  - float matrices: one chain acc = fma(x[k], w[k], acc) in order of k;
//  - sums over a vector: 16 lanes (element i goes to lane i % 16, in order), then lanes folded as 8+8, 4+4, 2+2, 1+1;
//  - attention: keys in blocks of kKeyBlock from position 0; each block is reduced on its own and blocks are merged in
//  order. Over an 8-bit cache in integers and f32 as q8_cache.h states; over others in f32 (avx512fp16 alone in half
//  precision, as reference_fp16 states).
// Kernels never allocate, never check: callers pass checked shapes. Threads: any, on disjoint outputs.
#pragma once
#include <cstddef>
#include <cstdint>

#include "inference/bones/kernels/kv_type.h"
#include "inference/bones/kernels/tile.h"

namespace tie::bones {

inline constexpr uint32_t kKeyBlock = 128;  // keys that attention reduces at a time
inline constexpr uint32_t kAttentionRows =
    8;  // query rows (token x head of the group) that share one pass over the keys

// y = x * W^T for all rows of x and columns [16 * first_strip, 16 * (first_strip + n_strips)) of w.
struct MatmulJob {
  PackedMatrix w;
  const Activations* x = nullptr;
  uint32_t first_strip = 0, n_strips = 0;
  float* out = nullptr;  // out[row * out_stride + (column - 16 * first_strip)]; whole strips are written, padding
                         // columns included
  size_t out_stride = 0;
  bool add = false;              // out += instead of out =
  std::byte* scratch = nullptr;  // matmul_scratch_bytes(k), 64-byte aligned, private to the thread
};

// Scale rows, multiply by a norm weight, quantise: value = (x * row_scale) * weight. Blocks [first_block, first_block +
// n_blocks) of one tile of rows: whole scale groups (the last of a row may be short).
struct QuantizeJob {
  const float* x =
      nullptr;  // row r of the whole batch at x + r * x_stride; its first element is input 32 * x_first_block
  uint32_t x_first_block = 0;
  size_t x_stride = 0;
  const float* row_scale = nullptr;  // per row of the batch; null: 1
  const float* weight = nullptr;     // per input; null: 1
  uint32_t tile = 0, first_block = 0, n_blocks = 0;
  Activations* out = nullptr;
};

// Query rows that attend to the same keys of one kv head.
struct AttentionJob {
  const std::byte* kv = nullptr;  // K of this layer and kv head in block 0 of the pool
  size_t block_stride = 0;        // bytes between pool blocks
  const uint32_t* block_table = nullptr;
  uint32_t block_tokens = 0, head_dim = 0;
  KvType type = KvType::kF16;
  float soft_cap = 0.0f;
  uint32_t n_rows = 0;  // <= kAttentionRows
  const float* q[kAttentionRows] = {};
  uint32_t key_begin[kAttentionRows] = {}, key_end[kAttentionRows] = {};  // row r sees keys [begin, end)
  std::byte* prepared =
      nullptr;  // attention_scratch_bytes(head_dim), 64-byte aligned: what prepare_queries leaves for attend_block
  const AttentionJob* next = nullptr;  // what this thread attends to next, fetched into its caches meanwhile, or null
  uint32_t next_block = 0;
};

// Softmax state of up to 8 rows over some keys: weights relative to max, their sum, and the weighted sum of values.
struct AttentionPartial {
  float max[kAttentionRows];
  float sum[kAttentionRows];
  float* acc = nullptr;  // [row][head_dim]
};

struct StoreKvJob {
  const float* k = nullptr;  // head_dim floats of one token and head, rotated
  const float* v = nullptr;
  std::byte* head = nullptr;  // this layer and kv head in the token's block
  uint32_t slot = 0, block_tokens = 0, head_dim = 0;
  KvType type = KvType::kF16;
};

struct KernelSet {
  const char* name;
  void (*matmul)(const MatmulJob& job);
  void (*quantize)(const QuantizeJob& job);
  float (*rms_scale)(const float* x, uint32_t n, float epsilon);  // 1 / sqrt(mean(x^2) + epsilon)
  void (*scale_mul)(float* out, const float* x, float scale, const float* weight,
                    uint32_t n);  // out = (x * scale) * weight
  void (*scale_mul_add)(float* out, const float* x, float scale, const float* weight,
                        uint32_t n);                                      // out += (x * scale) * weight
  void (*scale_by)(float* out, const float* x, float scale, uint32_t n);  // out = x * scale
  void (*add)(float* out, const float* x, uint32_t n);                    // out += x
  void (*rotate)(float* head, const float* cos, const float* sin, uint32_t half,
                 float scale);                                  // pairs (i, i + half), then * scale
  void (*silu_gate)(float* gate, const float* up, uint32_t n);  // gate = silu(gate) * up
  void (*gelu_gate)(float* gate, const float* up, uint32_t n);  // gate = gelu_tanh(gate) * up
  void (*soft_cap)(float* x, float cap, uint32_t n);            // x = cap * tanh(x / cap)
  void (*store_kv)(const StoreKvJob& job);
  void (*prepare_queries)(
      const AttentionJob& job);  // once for an item, before its first attend_block; null: nothing to prepare
  void (*attend_block)(const AttentionJob& job, uint32_t key_block,
                       AttentionPartial& out);  // keys [128 * key_block, + 128)
  // attend_block over an 8-bit cache and merge_partial of what it finds, to the same bits; null: call those.
  void (*attend_more)(const AttentionJob& job, uint32_t key_block, AttentionPartial& total);
  void (*merge_partial)(AttentionPartial& into, const AttentionPartial& from, uint32_t n_rows, uint32_t head_dim);
  void (*turn)(const float* from, uint32_t head_dim, float* to);  // q8_cache.h; in place as well
  uint32_t (*tile_rows)(uint32_t rows) = nullptr;  // rows of a tile of a batch of that many; null: rows_per_tile
};

// Scratch of MatmulJob for a matrix of k inputs: 32 columns unpacked, with scales and minima.
static inline size_t matmul_scratch_bytes(uint32_t k) {
  return (size_t{k} * 32 + size_t{k / 16 + 2} * 2 * 32 * 4 + 4096) & ~size_t{63};
}

static inline size_t attention_scratch_bytes(uint32_t head_dim) {
  return size_t{kAttentionRows} * head_dim * 2;
}

extern const KernelSet kReferenceKernels;
const KernelSet& reference_fp16_kernels();  // the twin of avx512fp16
#if defined(__x86_64__)
extern const KernelSet kAvx2Kernels;
extern const KernelSet kAvx512Kernels;
const KernelSet& avx512fp16_kernels();
#endif

}  // namespace tie::bones
