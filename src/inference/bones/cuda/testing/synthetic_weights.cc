#include "inference/bones/cuda/testing/synthetic_weights.h"

#include <cmath>
#include <cstring>

#include "inference/bones/cuda/launcher.h"
#include "inference/bones/kernels/cuda/pack_weights.h"

namespace tie::bones::cuda {

ModelConfig llama_config(uint32_t n_layers, uint32_t n_embd, uint32_t n_ff, uint32_t n_heads, uint32_t n_kv_heads,
                         uint32_t head_dim, uint32_t n_vocab) {
  ModelConfig c;
  std::memcpy(c.architecture, "llama", 5);
  c.n_layers = n_layers, c.n_embd = n_embd, c.n_ff = n_ff, c.n_heads = n_heads, c.n_kv_heads = n_kv_heads;
  c.head_dim = c.rope_dim = head_dim, c.n_vocab = n_vocab, c.context_length = 8192, c.tied_embeddings = 1;
  c.attention_scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  return c;
}

Result<LoadedWeights> synthetic_weights(std::shared_ptr<Driver> driver, const ModelConfig& c, Format format) {
  LoadedWeights out;
  out.table.config = c;
  auto add = [&](Role role, uint32_t layer, uint32_t n, uint32_t k) {
    const Format own = k == 1 ? Format::kF32 : format;
    const uint64_t bytes = k == 1 ? (uint64_t{n} * 4 + 255) / 256 * 256 : planes_of(own, n, k).bytes;
    out.table.tensors.push_back({role, layer, own, n, k, 0, out.table.bytes, bytes});
    out.table.bytes += bytes;
  };
  const uint32_t nq = c.n_heads * c.head_dim, nkv = c.n_kv_heads * c.head_dim;
  add(Role::kEmbedding, 0, c.n_vocab, c.n_embd);
  add(Role::kOutputNorm, 0, c.n_embd, 1);
  for (uint32_t i = 0; i < c.n_layers; ++i) {
    add(Role::kAttentionNorm, i, c.n_embd, 1);
    add(Role::kQ, i, nq, c.n_embd);
    add(Role::kK, i, nkv, c.n_embd);
    add(Role::kV, i, nkv, c.n_embd);
    add(Role::kAttentionOutput, i, c.n_embd, nq);
    add(Role::kFfnNorm, i, c.n_embd, 1);
    add(Role::kGate, i, c.n_ff, c.n_embd);
    add(Role::kUp, i, c.n_ff, c.n_embd);
    add(Role::kDown, i, c.n_embd, c.n_ff);
  }
  TIE_TRY(out.table, DeviceTable::parse(out.table.serialize()));
  TIE_TRY(out.memory, DeviceMemory::allocate(driver, out.table.bytes));
  TIE_CHECK_OK(fill_now(*driver, out.memory.at(), 0x21, out.table.bytes));
  return out;
}

}  // namespace tie::bones::cuda
