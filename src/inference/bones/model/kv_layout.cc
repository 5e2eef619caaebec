#include "inference/bones/kv_layout.h"

namespace tie::bones {

std::string_view kv_type_name(KvType type) {
  return type == KvType::kQ8 ? "q8" : type == KvType::kBf16 ? "bf16" : "f16";
}

Result<KvType> kv_type_named(std::string_view name) {
  for (KvType type : {KvType::kF16, KvType::kBf16, KvType::kQ8})
    if (name == kv_type_name(type)) return type;
  return fail(Code::kBadRequest, "a KV cache is f16, bf16 or q8, not \"" + std::string(name) + "\"");
}

KvType usual_kv_type(const ModelConfig& config) {
  return config.head_dim % 16 == 0 ? KvType::kQ8 : KvType::kF16;
}

Result<KvLayout> KvLayout::for_model(const ModelConfig& config, KvType type, uint32_t block_tokens) {
  if (block_tokens != 16 && block_tokens != 32 && block_tokens != 64 && block_tokens != 128)
    return fail(Code::kBadRequest, "a KV block holds 16, 32, 64 or 128 tokens");
  if (type != KvType::kF16 && type != KvType::kBf16 && type != KvType::kQ8)
    return fail(Code::kBadRequest, "unknown KV element type");
  if (type == KvType::kQ8 && config.head_dim % 16 != 0)
    return fail(Code::kBadRequest, "an 8-bit KV cache needs heads of a multiple of 16");
  return KvLayout{type, block_tokens, config.n_layers, config.n_kv_heads, config.head_dim};
}

std::string KvLayout::layout_id_input() const {
  std::string id = "tie-kv/" + std::to_string(kKvVersion);
  for (uint32_t value : {static_cast<uint32_t>(type), block_tokens, n_layers, n_kv_heads, head_dim})
    id += "/" + std::to_string(value);
  return id;
}

}  // namespace tie::bones
