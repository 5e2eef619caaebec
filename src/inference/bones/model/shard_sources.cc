#include "inference/bones/model/shard_sources.h"

namespace tie::bones {
namespace {

void keep_rows(TensorSource& source, uint32_t first, uint32_t n) {
  source.first_row += first;
  source.n = n;
}

// The same rows of every expert.
void keep_rows_of_each(TensorSource& source, uint32_t parts, uint32_t first, uint32_t n) {
  source.file_part_rows = source.n / parts;
  source.part_rows = n;
  source.first_row = first;
  source.n = parts * n;
}

void keep_inputs(TensorSource& source, uint32_t first, uint32_t k) {
  source.file_k = source.k;
  source.first_k = first;
  source.k = k;
}

Result<void> cut(TensorSource& source, const ModelConfig& c, const Shard& shard) {
  switch (source.role) {
    case Role::kEmbedding:
    case Role::kOutput:
      keep_rows(source, shard.first_vocab, shard.n_vocab);
      return {};
    case Role::kQ:
    case Role::kQBias:
      keep_rows(source, shard.first_head * c.head_dim, shard.n_heads * c.head_dim);
      return {};
    case Role::kK:
    case Role::kV:
    case Role::kKBias:
    case Role::kVBias:
      keep_rows(source, shard.first_kv_head * c.head_dim, shard.n_kv_heads * c.head_dim);
      return {};
    case Role::kAttentionOutput:
      keep_inputs(source, shard.first_head * c.head_dim, shard.n_heads * c.head_dim);
      return {};
    case Role::kGate:
    case Role::kUp:
      keep_rows(source, shard.first_ff, shard.n_ff);
      return {};
    case Role::kExpertGates:
    case Role::kExpertUps:
      keep_rows_of_each(source, c.n_experts, shard.first_ff, shard.n_ff);
      return {};
    case Role::kDown:
    case Role::kExpertDowns:
      keep_inputs(source, shard.first_ff, shard.n_ff);
      return {};
    case Role::kOutputNorm:
    case Role::kRopeFactors:
    case Role::kAttentionNorm:
    case Role::kQNorm:
    case Role::kKNorm:
    case Role::kPostAttentionNorm:
    case Role::kFfnNorm:
    case Role::kPostFfnNorm:
    case Role::kRouter:  // every rank asks the same experts
      return {};         // every rank of the layer has the whole tensor
    default:
      return fail(Code::kUnsupportedFeature,
                  "tensor " + std::string(source.tensor->name) + " cannot be divided over ranks");
  }
}

}  // namespace

Result<std::vector<TensorSource>> shard_sources(std::vector<TensorSource> sources, const ModelConfig& whole,
                                                const Shard& shard) {
  std::vector<TensorSource> out;
  for (TensorSource& source : sources) {
    const bool of_layer = static_cast<uint32_t>(source.role) >= static_cast<uint32_t>(Role::kAttentionNorm);
    if (of_layer && (source.layer < shard.first_layer || source.layer >= shard.first_layer + shard.n_layers)) continue;
    if (source.role == Role::kEmbedding && !shard.holds_embedding(whole)) continue;
    if ((source.role == Role::kOutput || source.role == Role::kOutputNorm) && !shard.last_stage) continue;
    TIE_CHECK_OK(cut(source, whole, shard));
    if (of_layer) source.layer -= shard.first_layer;
    out.push_back(source);
  }
  return out;
}

}  // namespace tie::bones
