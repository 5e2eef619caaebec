// What stands between the products: rows of the embedding and of the last layer, norms, activations, rotation of heads
// and the store into the paged cache, moving KV blocks. One block of 128 threads for each row, head or KV block.
#pragma once
#include "inference/bones/kernels/cuda/gemv.h"

namespace tie::bones::cuda {

inline constexpr uint32_t kRowThreads = 128;
inline constexpr uint32_t kRowSharedBytes = 128;

struct EmbedArgs {
  Matrix w;
  const int32_t* tokens = nullptr;
  float* x = nullptr;  // [rows][k]
  float scale = 1.0f;
  uint32_t first_id = 0;  // of the matrix's rows; other ids give zeros (another rank has them)
};

// Grid: rows.
template <Format kFormat, typename Block>
TIE_DEVICE void embed(Block& b, const EmbedArgs& a) {
  const uint32_t row = b.block_x(), id = static_cast<uint32_t>(a.tokens[row]) - a.first_id;
  for (uint32_t i = b.thread(); i < a.w.k / 16; i += kRowThreads) {
    float w[16] = {};
    if (id < a.w.n) load_half_block<kFormat>(a.w, id, i / 2, i % 2, w);
    for (uint32_t j = 0; j < 16; ++j) a.x[uint64_t{row} * a.w.k + 16 * i + j] = w[j] * a.scale;
  }
}

// Rows that are wanted, one after another. Grid: rows wanted.
struct GatherArgs {
  const float* x = nullptr;  // [..][n]
  const uint32_t* rows = nullptr;
  float* out = nullptr;  // [..][n]
  uint32_t n = 0;
};

template <typename Block>
TIE_DEVICE void gather_rows(Block& b, const GatherArgs& a) {
  const float* x = a.x + uint64_t{a.rows[b.block_x()]} * a.n;
  for (uint32_t i = b.thread(); i < a.n; i += kRowThreads) a.out[uint64_t{b.block_x()} * a.n + i] = x[i];
}

// out = bf16 of norm(x) * weight, or of x itself without a weight; the input of a gemm.
struct NormArgs {
  const float* x = nullptr;  // [rows][n]
  const float* weight = nullptr;
  uint16_t* out = nullptr;  // [rows][n]
  uint32_t n = 0;
  float epsilon = 0;
};

template <typename Block>
TIE_DEVICE float row_scale(Block& b, const float* x, uint32_t n, float epsilon) {
  float square = 0;
  for (uint32_t i = b.thread(); i < n; i += kRowThreads) square += x[i] * x[i];
  return 1.0f / sqrtf(block_sum(b, square, 0) / static_cast<float>(n) + epsilon);
}

template <typename Block>
TIE_DEVICE void norm_to_bf16(Block& b, const NormArgs& a) {
  const float* x = a.x + uint64_t{b.block_x()} * a.n;
  uint16_t* out = a.out + uint64_t{b.block_x()} * a.n;
  const float scale = a.weight ? row_scale(b, x, a.n, a.epsilon) : 1.0f;
  for (uint32_t i = b.thread(); i < a.n; i += kRowThreads)
    out[i] = static_cast<uint16_t>(bf16_bits(x[i] * scale * (a.weight ? a.weight[i] : 1.0f)));
}

// x += norm(y) * weight: the residual after a post norm.
struct AddNormArgs {
  float* x = nullptr;
  const float* y = nullptr;
  const float* weight = nullptr;
  uint32_t n = 0;
  float epsilon = 0;
};

template <typename Block>
TIE_DEVICE void add_norm(Block& b, const AddNormArgs& a) {
  float* x = a.x + uint64_t{b.block_x()} * a.n;
  const float* y = a.y + uint64_t{b.block_x()} * a.n;
  const float scale = row_scale(b, y, a.n, a.epsilon);
  for (uint32_t i = b.thread(); i < a.n; i += kRowThreads) x[i] += y[i] * scale * a.weight[i];
}

// out = bf16 of gate(g) * up, rows of n.
struct GateArgs {
  const float* gate = nullptr;
  const float* up = nullptr;
  uint16_t* out = nullptr;
  uint32_t n = 0;
  Gate kind = Gate::kSilu;
};

template <typename Block>
TIE_DEVICE void gate_to_bf16(Block& b, const GateArgs& a) {
  const uint64_t at = uint64_t{b.block_x()} * a.n;
  for (uint32_t i = b.thread(); i < a.n; i += kRowThreads)
    a.out[at + i] = static_cast<uint16_t>(bf16_bits(gated(a.kind, a.gate[at + i], a.up[at + i])));
}

// How the cache keeps a number: in 16 bits, or as e4m3 with a scale for each token's key and value of a head.
enum class KvElement : uint32_t { kF16, kBf16, kE4m3 };

// The paged cache in GPU memory, the same number of bytes as KvLayout's. Block record: [layer][kv head] { K:
// [token][head_dim], V: [token][head_dim], and of e4m3 the scales: [token]{ K's, V's } in float }.
struct PagedKv {
  uint8_t* base = nullptr;
  uint64_t block_bytes = 0, layer_offset = 0;  // of this layer in a record
  uint32_t block_tokens = 0, head_dim = 0, n_kv_heads = 0;
  KvElement element = KvElement::kF16;
};

// A token's key (value 0) or value (1) of a head.
struct KvVector {
  uint8_t* at;
  float* scale;  // of e4m3
};

TIE_DEVICE KvVector kv_vector(const PagedKv& kv, uint32_t block, uint32_t head, uint32_t slot, uint32_t value) {
  const bool small = kv.element == KvElement::kE4m3;
  const uint64_t row = uint64_t{kv.head_dim} * (small ? 1 : 2), numbers = 2 * row * kv.block_tokens;
  uint8_t* record =
      kv.base + block * kv.block_bytes + kv.layer_offset + head * (numbers + (small ? kv.block_tokens * 8 : 0));
  return {record + (uint64_t{value} * kv.block_tokens + slot) * row,
          reinterpret_cast<float*>(record + numbers) + slot * 2 + value};
}
TIE_DEVICE float kv_number(const PagedKv& kv, const KvVector& v, uint32_t i) {
  if (kv.element == KvElement::kE4m3) return e4m3_value(v.at[i]) * *v.scale;
  const uint16_t bits = reinterpret_cast<const uint16_t*>(v.at)[i];
  return kv.element == KvElement::kBf16 ? bf16_value(bits) : half_value(bits);
}
// Of 16 bits alone.
TIE_DEVICE void put_kv_number(const PagedKv& kv, const KvVector& v, uint32_t i, float f) {
  reinterpret_cast<uint16_t*>(v.at)[i] =
      kv.element == KvElement::kBf16 ? static_cast<uint16_t>(bf16_bits(f)) : half_bits(f);
}

// Where each row of the batch stands; all in GPU memory so that a captured graph serves every step.
struct RowPlaces {
  const uint32_t* position = nullptr;  // [rows]
  const uint32_t* sequence = nullptr;  // [rows]
  const uint32_t* tables = nullptr;    // [sequences][table_stride] block numbers
  uint32_t table_stride = 0;
};

struct HeadsArgs {
  float* q = nullptr;  // [rows][n_heads * head_dim], rotated and scaled in place
  const float* k = nullptr;
  const float* v = nullptr;
  const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;
  const double* frequencies = nullptr;  // [rope_dim / 2] angles per position
  RowPlaces rows;
  PagedKv kv;
  uint32_t n_heads = 0, rope_dim = 0;
  float epsilon = 0, scale = 1.0f, rope_scale = 1.0f;  // of q; of cos and sin
};

// Bias, norm, rotation; q stays, k and v go to the cache. Grid: x = heads + 2 * kv heads, y = rows. head_dim <= 512.
inline constexpr uint32_t kHeadsSharedBytes = 128 + 2 * 512 * 4;

// The thread's own numbers of a key or value, which it has left in `numbers`, to the cache as e4m3. The largest becomes
// 448, the largest code.
template <typename Block, typename Shared>
TIE_DEVICE void store_e4m3(Block& b, const KvVector& to, uint32_t d, const Shared& numbers) {
  float most = 0;
  for (uint32_t i = b.thread(); i < d; i += kRowThreads) most = fmaxf(most, fabsf(numbers[i]));
  const float scale = block_max(b, most, 0) / 448.0f;
  const float inverse = scale > 1e-30f ? 1.0f / scale : 0.0f;
  for (uint32_t i = b.thread(); i < d; i += kRowThreads) to.at[i] = e4m3_bits(numbers[i] * inverse);
  if (b.thread() == 0) *to.scale = scale;
}

template <typename Block>
TIE_DEVICE void finish_heads(Block& b, const HeadsArgs& a) {
  auto head = b.template shared<float>(128, 512), finished = b.template shared<float>(128 + 512 * 4, 512);
  const uint32_t d = a.kv.head_dim, n_kv = a.kv.n_kv_heads, row = b.block_y(), index = b.block_x();
  const bool is_q = index < a.n_heads, is_v = index >= a.n_heads + n_kv;
  const uint32_t h = is_q ? index : (index - a.n_heads) % n_kv;
  const float* from =
      is_q ? a.q + (uint64_t{row} * a.n_heads + h) * d : (is_v ? a.v : a.k) + (uint64_t{row} * n_kv + h) * d;
  const float* bias = is_q ? a.q_bias : is_v ? a.v_bias : a.k_bias;
  const float* norm = is_q ? a.q_norm : is_v ? nullptr : a.k_norm;
  float square = 0;
  for (uint32_t i = b.thread(); i < d; i += kRowThreads) {
    const float v = from[i] + (bias ? bias[h * d + i] : 0.0f);
    head[i] = v;
    square += v * v;
  }
  const float total = block_sum(b, square, 0);  // a barrier as well
  const float scale = norm ? 1.0f / sqrtf(total / static_cast<float>(d) + a.epsilon) : 1.0f;
  const uint32_t position = a.rows.position[row], half = a.rope_dim / 2;
  const uint32_t block =
      a.rows.tables[uint64_t{a.rows.sequence[row]} * a.rows.table_stride + position / a.kv.block_tokens];
  const KvVector to = kv_vector(a.kv, block, h, position % a.kv.block_tokens, is_v ? 1 : 0);
  for (uint32_t i = b.thread(); i < d; i += kRowThreads) {
    auto at = [&](uint32_t j) { return head[j] * scale * (norm ? norm[j] : 1.0f); };
    float v = at(i);
    if (!is_v && i < a.rope_dim) {
      const uint32_t pair = i < half ? i : i - half;
      // Whole turns are taken off in double: far positions would lose the angle in float.
      constexpr double kTurn = 6.283185307179586;
      const double turns = static_cast<double>(position) * a.frequencies[pair];
      const auto angle = static_cast<float>(turns - kTurn * floor(turns / kTurn));
      const float c = cosf(angle) * a.rope_scale, s = sinf(angle) * a.rope_scale;
      v = i < half ? v * c - at(i + half) * s : at(i - half) * s + v * c;
    }
    if (is_q)
      a.q[(uint64_t{row} * a.n_heads + h) * d + i] = v * a.scale;
    else if (a.kv.element == KvElement::kE4m3)
      finished[i] = v;
    else
      put_kv_number(a.kv, to, i, v);
  }
  if (!is_q && a.kv.element == KvElement::kE4m3) store_e4m3(b, to, d, finished);
}

// Moves whole KV blocks between the pool and a run of records (pinned kvxfer memory), either way. Grid: blocks.
struct CopyBlocksArgs {
  uint8_t* pool = nullptr;
  uint8_t* records = nullptr;
  const uint32_t* blocks = nullptr;
  uint64_t block_bytes = 0;  // a multiple of 16
  uint32_t to_pool = 0;
};

template <typename Block>
TIE_DEVICE void copy_blocks(Block& b, const CopyBlocksArgs& a) {
  auto* in_pool = reinterpret_cast<Bytes16*>(a.pool + a.blocks[b.block_x()] * a.block_bytes);
  auto* record = reinterpret_cast<Bytes16*>(a.records + b.block_x() * a.block_bytes);
  Bytes16* to = a.to_pool ? in_pool : record;
  const Bytes16* from = a.to_pool ? record : in_pool;
  const uint64_t count = a.block_bytes / 16;
  for (uint64_t i = b.thread(); i < count; i += kRowThreads) to[i] = from[i];
}

}  // namespace tie::bones::cuda
