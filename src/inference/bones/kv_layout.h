// How keys and values lie in the paged cache, and the view of the memory that the engine owns.
// A block holds `block_tokens` tokens of *all* layers in one contiguous record, so export, import, copy-on-write and
// zeroing of a block are each one flat copy of block_bytes(). Inside: [layer][kv head] { K: [token / 16][head_dim /
// 2][16 tokens][2], V: [token][head_dim] }, keys already rotated; in 8 bits as kernels/q8_cache.h says. Plain data, no
// threads; the engine allocates 64-byte-aligned memory (huge pages if it can) and hands out block numbers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "inference/bones/kernels/kv_type.h"
#include "inference/bones/model_config.h"

namespace tie::bones {

inline constexpr uint32_t kKvVersion = 2;       // of the order of elements
inline constexpr uint32_t kKvGroupTokens = 16;  // tokens that share a key line; block_tokens is a multiple of it

// "f16", "bf16", "q8", as models and tools name them; another name is kBadRequest.
Result<KvType> kv_type_named(std::string_view name);
std::string_view kv_type_name(KvType type);
// What a model gets on the CPU when nothing else is asked for: q8 where its heads allow it, else f16.
KvType usual_kv_type(const ModelConfig& config);

struct KvLayout {
  KvType type = KvType::kF16;
  uint32_t block_tokens = 32;
  uint32_t n_layers = 0;
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;

  // block_tokens: 16, 32, 64 or 128; 8 bits need a head_dim that is a multiple of 16. Anything else is kBadRequest.
  static Result<KvLayout> for_model(const ModelConfig& config, KvType type = KvType::kF16, uint32_t block_tokens = 32);

  size_t element_bytes() const { return type == KvType::kQ8 ? 1 : 2; }
  size_t scale_bytes() const { return type == KvType::kQ8 ? 8 : 0; }  // of a token and kv head
  size_t head_bytes() const {                                         // K and V of one head
    return block_tokens * (size_t{2} * head_dim * element_bytes() + scale_bytes());
  }
  size_t layer_bytes() const { return head_bytes() * n_kv_heads; }
  size_t block_bytes() const { return layer_bytes() * n_layers; }
  size_t token_bytes() const { return block_bytes() / block_tokens; }
  uint32_t blocks_for(uint32_t tokens) const { return (tokens + block_tokens - 1) / block_tokens; }

  // Everything two processes must agree on before a block moves between them, as text for a hash ("layout_id"): packing
  // version, type, sizes.
  std::string layout_id_input() const;

  // Where the keys and values of 16 tokens begin in a head's record, and how long they are without scales.
  size_t keys_at(uint32_t group) const { return group * group_stride(); }
  size_t values_at(uint32_t group) const {
    return type == KvType::kQ8 ? keys_at(group) + group_bytes() + kKvGroupTokens * sizeof(float)
                               : head_bytes() / 2 + keys_at(group);
  }
  size_t group_bytes() const { return kKvGroupTokens * head_dim * element_bytes(); }

 private:
  size_t group_stride() const {
    return type == KvType::kQ8 ? 2 * group_bytes() + kKvGroupTokens * scale_bytes() : group_bytes();
  }
};

// The pool the engine owns. Block b is base + b * block_bytes(). Blocks must be zero or finite when first used (fresh
// and freed blocks are zeroed).
struct KvPool {
  std::byte* base = nullptr;
  uint32_t n_blocks = 0;
  KvLayout layout;
  std::byte* block(uint32_t index) const { return base + size_t{index} * layout.block_bytes(); }
};

}  // namespace tie::bones
