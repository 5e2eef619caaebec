// The reference kernel set: plain loops in the rounding order that kernel_set.h prescribes. Slow and obvious; the other
// sets are tested against it.
#include <algorithm>
#include <cmath>
#include <limits>

#include "inference/bones/kernels/kernel_set.h"
#include "inference/bones/kernels/reference/math.h"
#include "inference/bones/kernels/reference/q8_attention.h"
#include "inference/bones/kernels/reference/tile_access.h"
#include "inference/bones/weights_image.h"

namespace tie::bones {
namespace {

using namespace reference;

// Code of input i of block b of batch row `row`.
int32_t activation(const Activations& x, uint32_t row, uint32_t b, uint32_t i) {
  const uint32_t R = x.rows_per_tile;
  const size_t block = size_t{row / R} * x.blocks() + b;
  return x.codes[((block * 8 + i / 4) * R + row % R) * 4 + i % 4];
}

int32_t dot_codes(const MatmulJob& job, const std::byte* strip, uint32_t row, uint32_t c, uint32_t b, uint32_t from,
                  uint32_t to) {
  int32_t dot = 0;
  const auto offset = static_cast<int32_t>(code_offset(job.w.packing));
  for (uint32_t i = from; i < to; ++i)
    dot += (static_cast<int32_t>(tile_code(job.w.packing, strip, b, c, i)) - offset) * activation(*job.x, row, b, i);
  return dot;
}

// Wraps as the vector units do; packing bounds scales so that a sound image never does.
int32_t folded_sum(const MatmulJob& job, const std::byte* strip, uint32_t row, uint32_t c, uint32_t from, uint32_t to) {
  const Activations& x = *job.x;
  uint32_t sum = 0;
  for (uint32_t b = from; b < to; ++b) {
    const size_t at = (size_t{row / x.rows_per_tile} * x.blocks() + b) * x.rows_per_tile + row % x.rows_per_tile;
    int32_t d = x.start4[at];
    for (uint32_t i = 0; i < kBlock; ++i)
      d += static_cast<int32_t>(tile_code(job.w.packing, strip, b, c, i)) * activation(x, row, b, i);
    const FoldedScale w = folded_scale(strip, b, c);
    const int32_t low = static_cast<int16_t>(d & 0xffff), high = d >> 16;
    sum += static_cast<uint32_t>(low * w.scale) + static_cast<uint32_t>(high * w.minimum);
  }
  return static_cast<int32_t>(sum);
}

float folded_output(const MatmulJob& job, const std::byte* strip, uint32_t row, uint32_t c) {
  const Activations& x = *job.x;
  float acc = 0.0f;
  for (uint32_t b = 0; b < x.blocks(); b += kScaleBlocks) {
    const size_t at = (size_t{row / x.rows_per_tile} * x.blocks() + b) * x.rows_per_tile + row % x.rows_per_tile;
    const uint32_t to = std::min(b + kScaleBlocks, x.blocks());
    acc = std::fma(static_cast<float>(folded_sum(job, strip, row, c, b, to)), x.scale[at], acc);
  }
  return acc * folded_unit(strip, x.k, c);
}

float quantised_output(const MatmulJob& job, const std::byte* strip, uint32_t row, uint32_t c) {
  const Activations& x = *job.x;
  if (job.w.packing == Packing::kTileQ4) return folded_output(job, strip, row, c);
  const bool has_minimum = job.w.packing == Packing::kTileQ5;
  const uint32_t step = job.w.packing == Packing::kTileQ6 ? 16 : 32;
  float acc = 0.0f;
  for (uint32_t b = 0; b < x.blocks(); ++b) {
    const size_t at = (size_t{row / x.rows_per_tile} * x.blocks() + b) * x.rows_per_tile + row % x.rows_per_tile;
    for (uint32_t i = 0; i < kBlock; i += step) {
      const float scale = tile_scale(job.w.packing, strip, b, c, i) * x.scale[at];
      acc = std::fma(static_cast<float>(dot_codes(job, strip, row, c, b, i, i + step)), scale, acc);
    }
    if (has_minimum) acc = std::fma(tile_minimum(job.w.packing, strip, b, c), x.sum[at], acc);
  }
  return acc;
}

float float_weight(const PackedMatrix& w, const std::byte* strip, uint32_t i, uint32_t c) {
  if (w.packing == Packing::kTileF16) return half_to_float(load_u16(strip + (size_t{i} * kStrip + c) * 2));
  if (w.packing == Packing::kTileBf16) return bf16_to_float(load_u16(strip + (size_t{i} * kStrip + c) * 2));
  float f;
  std::memcpy(&f, strip + (size_t{i} * kStrip + c) * 4, 4);
  return f;
}

float float_output(const MatmulJob& job, const std::byte* strip, uint32_t row, uint32_t c) {
  float acc = 0.0f;
  const float* x = job.x->f32 + size_t{row} * job.x->f32_stride;
  for (uint32_t i = 0; i < job.w.k; ++i) acc = std::fma(x[i], float_weight(job.w, strip, i, c), acc);
  return acc;
}

void matmul(const MatmulJob& job) {
  const size_t bytes = strip_bytes(job.w.packing, job.w.k);
  for (uint32_t s = 0; s < job.n_strips; ++s) {
    const std::byte* strip = job.w.data + size_t{job.first_strip + s} * bytes;
    for (uint32_t row = 0; row < job.x->rows; ++row) {
      for (uint32_t c = 0; c < kStrip; ++c) {
        const float y =
            is_quantised(job.w.packing) ? quantised_output(job, strip, row, c) : float_output(job, strip, row, c);
        float& out = job.out[row * job.out_stride + s * kStrip + c];
        out = job.add ? out + y : y;
      }
    }
  }
}

// Blocks [b, end) of one row: a scale group.
void quantize_group(const QuantizeJob& job, uint32_t row, uint32_t b, uint32_t end) {
  Activations& out = *job.out;
  const uint32_t R = out.rows_per_tile, r = row % R;
  const bool real = row < out.rows;
  float y[kScaleBlocks * kBlock];
  float amax = 0.0f;
  for (uint32_t at = b * kBlock; at < end * kBlock; ++at) {
    float& value = y[at - b * kBlock];
    value = real ? job.x[row * job.x_stride + at - job.x_first_block * kBlock] : 0.0f;
    if (job.row_scale && real) value *= job.row_scale[row];
    if (job.weight) value *= job.weight[at];
    if (real && out.want_f32) out.f32[row * out.f32_stride + at] = value;
    amax = std::max(amax, std::fabs(value));
  }
  if (!out.want_codes) return;
  const float inverse = amax > 1e-30f ? 127.0f / amax : 0.0f, scale = amax > 1e-30f ? amax / 127.0f : 0.0f;
  for (const float* value = y; b < end; ++b, value += kBlock) {
    const size_t block = size_t{row / R} * out.blocks() + b;
    int32_t halves[2] = {0, 0};
    for (uint32_t i = 0; i < kBlock; ++i) {
      const auto code = static_cast<int32_t>(std::nearbyint(value[i] * inverse));
      out.codes[((block * 8 + i / 4) * R + r) * 4 + i % 4] = static_cast<int8_t>(code);
      halves[i / 16] += code;
    }
    out.scale[block * R + r] = scale;
    out.sum[block * R + r] = scale * static_cast<float>(halves[0] + halves[1]);
    out.start4[block * R + r] = 65535 * 8 * (halves[0] + halves[1]);
    out.neg128[block * R + r] = -128 * (halves[0] + halves[1]);
    for (uint32_t h = 0; h < 2; ++h) out.neg32[(block * 2 + h) * R + r] = -32 * halves[h];
  }
}

void quantize(const QuantizeJob& job) {
  const uint32_t R = job.out->rows_per_tile, last = job.first_block + job.n_blocks;
  for (uint32_t row = job.tile * R; row < (job.tile + 1) * R; ++row) {
    for (uint32_t b = job.first_block; b < last; b += job.out->group)
      quantize_group(job, row, b, std::min(b + job.out->group, last));
  }
}

float rms_scale(const float* x, uint32_t n, float epsilon) {
  float lanes[16] = {};
  for (uint32_t i = 0; i < n; ++i) lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  return 1.0f / std::sqrt(fold_lanes(lanes) / static_cast<float>(n) + epsilon);
}

void scale_mul(float* out, const float* x, float scale, const float* weight, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) out[i] = (x[i] * scale) * weight[i];
}

void scale_mul_add(float* out, const float* x, float scale, const float* weight, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) out[i] = out[i] + (x[i] * scale) * weight[i];
}

void scale_by(float* out, const float* x, float scale, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) out[i] = x[i] * scale;
}

void add(float* out, const float* x, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) out[i] += x[i];
}

void rotate(float* head, const float* cos, const float* sin, uint32_t half, float scale) {
  for (uint32_t i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = std::fma(a, cos[i], -(b * sin[i])) * scale;
    head[i + half] = std::fma(a, sin[i], b * cos[i]) * scale;
  }
}

void silu_gate(float* gate, const float* up, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) gate[i] = silu(gate[i]) * up[i];
}

void gelu_gate(float* gate, const float* up, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) gate[i] = gelu_tanh(gate[i]) * up[i];
}

void soft_cap(float* x, float cap, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) x[i] = cap * tanh_f32(x[i] / cap);
}

uint32_t to_kv(float f, bool bf16) {
  return bf16 ? float_to_bf16(f) : float_to_half(f);
}
float from_kv(const std::byte* p, bool bf16) {
  return bf16 ? bf16_to_float(load_u16(p)) : half_to_float(load_u16(p));
}

void store_kv(const StoreKvJob& job) {
  if (job.type == KvType::kQ8) return q8_store(job);
  const bool bf16 = job.type == KvType::kBf16;
  std::byte* keys = job.head + size_t{job.slot / 16} * job.head_dim * 32 + 4 * (job.slot % 16);
  std::byte* values = job.head + (size_t{job.block_tokens} + job.slot) * job.head_dim * 2;
  for (uint32_t d = 0; d < job.head_dim; ++d) {
    const auto k = static_cast<uint16_t>(to_kv(job.k[d], bf16)), v = static_cast<uint16_t>(to_kv(job.v[d], bf16));
    std::memcpy(keys + 64 * (d / 2) + 2 * (d % 2), &k, 2);
    std::memcpy(values + 2 * d, &v, 2);
  }
}

const std::byte* block_of(const AttentionJob& job, uint32_t key) {
  return job.kv + size_t{job.block_table[key / job.block_tokens]} * job.block_stride;
}

float score(const AttentionJob& job, uint32_t r, uint32_t key) {
  const uint32_t slot = key % job.block_tokens;
  const std::byte* k = block_of(job, key) + size_t{slot / 16} * job.head_dim * 32 + 4 * (slot % 16);
  float s = 0.0f;
  for (uint32_t d = 0; d < job.head_dim; ++d)
    s = std::fma(job.q[r][d], from_kv(k + 64 * size_t{d / 2} + 2 * (d % 2), job.type == KvType::kBf16), s);
  return job.soft_cap > 0.0f ? job.soft_cap * tanh_f32(s / job.soft_cap) : s;
}

void attend_block(const AttentionJob& job, uint32_t key_block, AttentionPartial& out) {
  if (job.type == KvType::kQ8) return q8_attend_block(job, key_block, out);
  const float infinity = std::numeric_limits<float>::infinity();
  for (uint32_t r = 0; r < job.n_rows; ++r) {
    float* acc = out.acc + size_t{r} * job.head_dim;
    std::fill_n(acc, job.head_dim, 0.0f);
    const uint32_t begin = std::max(job.key_begin[r], key_block * kKeyBlock),
                   end = std::min(job.key_end[r], (key_block + 1) * kKeyBlock);
    float scores[kKeyBlock], lanes[16] = {};
    out.max[r] = -infinity;
    out.sum[r] = 0.0f;
    for (uint32_t key = begin; key < end; ++key) {
      scores[key % kKeyBlock] = score(job, r, key);
      out.max[r] = std::max(out.max[r], scores[key % kKeyBlock]);
    }
    for (uint32_t key = begin; key < end; ++key) {
      const float p = exp_f32(scores[key % kKeyBlock] - out.max[r]);
      lanes[key % 16] += p;
      const std::byte* v = block_of(job, key) + (size_t{job.block_tokens} + key % job.block_tokens) * job.head_dim * 2;
      for (uint32_t d = 0; d < job.head_dim; ++d)
        acc[d] = std::fma(p, from_kv(v + 2 * d, job.type == KvType::kBf16), acc[d]);
    }
    out.sum[r] = fold_lanes(lanes);
  }
}

void merge_partial(AttentionPartial& into, const AttentionPartial& from, uint32_t n_rows, uint32_t head_dim) {
  for (uint32_t r = 0; r < n_rows; ++r) {
    const float top = std::max(into.max[r], from.max[r]);
    if (!(top > -std::numeric_limits<float>::infinity())) continue;
    const float a = exp_f32(into.max[r] - top), b = exp_f32(from.max[r] - top);
    into.max[r] = top;
    into.sum[r] = std::fma(into.sum[r], a, from.sum[r] * b);
    for (uint32_t d = 0; d < head_dim; ++d) {
      float& acc = into.acc[size_t{r} * head_dim + d];
      acc = std::fma(acc, a, from.acc[size_t{r} * head_dim + d] * b);
    }
  }
}

}  // namespace

const KernelSet kReferenceKernels = {"reference", matmul,  quantize,     rms_scale, scale_mul,     scale_mul_add,
                                     scale_by,    add,     rotate,       silu_gate, gelu_gate,     soft_cap,
                                     store_kv,    nullptr, attend_block, nullptr,   merge_partial, q8_turn};

}  // namespace tie::bones
