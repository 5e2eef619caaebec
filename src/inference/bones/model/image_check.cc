#include "inference/bones/model/image_check.h"

#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "inference/bones/kernels/reference/tile_access.h"
#include "inference/bones/model/repack.h"

namespace tie::bones {
namespace {

struct Shape {
  uint32_t n, k;
};

// Shape of a role's tensor; n == 0: the config has no such tensor.
Shape shape_of(const ModelConfig& c, Role role) {
  const uint32_t nq = c.n_heads * c.head_dim, nkv = c.n_kv_heads * c.head_dim;
  switch (role) {
    case Role::kEmbedding:
      return {c.n_vocab, c.n_embd};
    case Role::kOutput:
      return {c.tied_embeddings ? 0 : c.n_vocab, c.n_embd};
    case Role::kOutputNorm:
    case Role::kAttentionNorm:
    case Role::kFfnNorm:
      return {c.n_embd, 1};
    case Role::kRopeFactors:
      return {c.rope_dim / 2, 1};
    case Role::kQ:
      return {nq, c.n_embd};
    case Role::kK:
    case Role::kV:
      return {nkv, c.n_embd};
    case Role::kQBias:
      return {c.qkv_bias ? nq : 0, 1};
    case Role::kKBias:
    case Role::kVBias:
      return {c.qkv_bias ? nkv : 0, 1};
    case Role::kQNorm:
    case Role::kKNorm:
      return {c.qk_norm ? c.head_dim : 0, 1};
    case Role::kAttentionOutput:
      return {c.n_embd, nq};
    case Role::kPostAttentionNorm:
    case Role::kPostFfnNorm:
      return {c.post_norms ? c.n_embd : 0, 1};
    case Role::kGate:
    case Role::kUp:
      return {c.n_experts ? 0 : c.n_ff, c.n_embd};
    case Role::kDown:
      return {c.n_experts ? 0 : c.n_embd, c.n_ff};
    case Role::kRouter:
      return {c.n_experts, c.n_embd};
    case Role::kExpertGates:
    case Role::kExpertUps:
      return {c.n_experts * c.n_ff, c.n_embd};
    case Role::kExpertDowns:
      return {c.n_experts * c.n_embd, c.n_ff};
  }
  return {0, 0};
}

constexpr Role kModelRoles[] = {Role::kEmbedding, Role::kOutputNorm, Role::kOutput};
constexpr Role kLayerRoles[] = {Role::kAttentionNorm,
                                Role::kQ,
                                Role::kK,
                                Role::kV,
                                Role::kQBias,
                                Role::kKBias,
                                Role::kVBias,
                                Role::kQNorm,
                                Role::kKNorm,
                                Role::kAttentionOutput,
                                Role::kPostAttentionNorm,
                                Role::kFfnNorm,
                                Role::kGate,
                                Role::kUp,
                                Role::kDown,
                                Role::kPostFfnNorm,
                                Role::kRouter,
                                Role::kExpertGates,
                                Role::kExpertUps,
                                Role::kExpertDowns};

std::unexpected<Error> corrupt(const TensorEntry& entry, const char* what) {
  return fail(Code::kCorrupt, "weights image: tensor " + std::string(role_name(entry.role)) + " of layer " +
                                  std::to_string(entry.layer) + " " + what);
}

Result<void> check_entry(const ModelConfig& c, const TensorEntry& entry, uint64_t first_byte, uint64_t image_bytes) {
  const Shape shape = shape_of(c, entry.role);
  if (shape.n == 0) return corrupt(entry, "does not belong to this model");
  const bool of_layer = static_cast<uint32_t>(entry.role) >= static_cast<uint32_t>(Role::kAttentionNorm);
  if (entry.layer >= (of_layer ? c.n_layers : 1)) return corrupt(entry, "names a layer that does not exist");
  if (entry.n != shape.n || entry.k != shape.k) return corrupt(entry, "has the wrong shape");
  if (entry.packing > Packing::kTileF32 || (entry.packing == Packing::kVector) != (shape.k == 1))
    return corrupt(entry, "has a packing that does not fit it");
  if (entry.offset % kImageAlignment != 0 || entry.offset < first_byte || entry.offset > image_bytes ||
      entry.bytes > image_bytes - entry.offset)
    return corrupt(entry, "lies outside the image");
  if (entry.bytes != packed_bytes(entry.packing, entry.n, entry.k))
    return corrupt(entry, "has the wrong number of bytes");
  return {};
}

bool in_range(uint32_t value, uint32_t max) {
  return value >= 1 && value <= max;
}
bool sane(float f) {
  return std::isfinite(f) && f >= 0.0f;
}
bool flag(uint32_t value) {
  return value <= 1;
}

bool sane(const RopeConfig& r) {
  return r.base > 0 && sane(r.base) && r.factor > 0 && sane(r.factor) && r.scaling <= RopeScaling::kYarn &&
         sane(r.yarn_beta_fast) && sane(r.yarn_beta_slow) && sane(r.yarn_ext_factor) && r.attention_factor > 0 &&
         sane(r.attention_factor) && r.original_context <= kMaxContext &&
         (r.scaling != RopeScaling::kYarn || r.original_context > 0);
}

}  // namespace

const char* role_name(Role role) {
  switch (role) {
    case Role::kEmbedding:
      return "embedding";
    case Role::kOutputNorm:
      return "output norm";
    case Role::kOutput:
      return "output";
    case Role::kRopeFactors:
      return "rope factors";
    case Role::kAttentionNorm:
      return "attention norm";
    case Role::kQ:
      return "q";
    case Role::kK:
      return "k";
    case Role::kV:
      return "v";
    case Role::kQBias:
      return "q bias";
    case Role::kKBias:
      return "k bias";
    case Role::kVBias:
      return "v bias";
    case Role::kQNorm:
      return "q norm";
    case Role::kKNorm:
      return "k norm";
    case Role::kAttentionOutput:
      return "attention output";
    case Role::kPostAttentionNorm:
      return "post-attention norm";
    case Role::kFfnNorm:
      return "feed-forward norm";
    case Role::kGate:
      return "gate";
    case Role::kUp:
      return "up";
    case Role::kDown:
      return "down";
    case Role::kPostFfnNorm:
      return "post-feed-forward norm";
    case Role::kRouter:
      return "router";
    case Role::kExpertGates:
      return "gates of the experts";
    case Role::kExpertUps:
      return "ups of the experts";
    case Role::kExpertDowns:
      return "downs of the experts";
  }
  return "unknown";
}

Result<void> check_config(const ModelConfig& c) {
  auto bad = [](const char* what) { return fail(Code::kCorrupt, std::string("model config: ") + what); };
  if (c.architecture[sizeof c.architecture - 1] != 0) return bad("the architecture's name has no end");
  if (!in_range(c.n_layers, kMaxLayers)) return bad("number of layers out of range");
  if (!in_range(c.n_embd, kMaxWidth) || c.n_embd % 32 != 0)
    return bad("embedding width out of range or not a multiple of 32");
  if (!in_range(c.n_ff, kMaxWidth) || c.n_ff % 32 != 0)
    return bad("feed-forward width out of range or not a multiple of 32");
  if (!in_range(c.n_heads, kMaxHeads) || !in_range(c.n_kv_heads, kMaxHeads) || c.n_heads % c.n_kv_heads != 0)
    return bad("numbers of heads do not fit each other");
  if (!in_range(c.head_dim, kMaxHeadDim) || c.head_dim % 16 != 0)
    return bad("head dimension out of range or not a multiple of 16");
  if (c.n_heads * c.head_dim % 32 != 0 || c.n_heads * c.head_dim > kMaxWidth)
    return bad("width of all heads out of range or not a multiple of 32");
  if (!in_range(c.n_vocab, kMaxVocab)) return bad("vocabulary size out of range");
  if (!in_range(c.context_length, kMaxContext)) return bad("context length out of range");
  if (!in_range(c.rope_dim, c.head_dim) || c.rope_dim % 2 != 0) return bad("rotary dimension out of range or odd");
  if (!sane(c.norm_epsilon) || !sane(c.embedding_scale) || !sane(c.attention_scale) || !sane(c.attention_soft_cap) ||
      !sane(c.logit_soft_cap))
    return bad("a scale is negative or not a finite number");
  if (c.sliding_window > kMaxContext || c.sliding_pattern > kMaxLayers || c.activation > Activation::kGeluTanh)
    return bad("window or activation out of range");
  if (c.n_experts > kMaxExperts || c.n_experts_used > kMaxExpertsUsed || c.n_experts_used > c.n_experts ||
      (c.n_experts != 0) != (c.n_experts_used != 0) || (c.n_experts != 0 && c.post_norms))
    return bad("numbers of experts out of range");
  if (!flag(c.normalise_experts) || !flag(c.qk_norm) || !flag(c.post_norms) || !flag(c.tied_embeddings) ||
      !flag(c.qkv_bias))
    return bad("a flag is neither 0 nor 1");
  if (!sane(c.rope_global) || !sane(c.rope_local)) return bad("rotary parameters out of range");
  return {};
}

Result<void> check_entries(const ModelConfig& whole, const Shard& shard, std::span<const TensorEntry> entries,
                           uint64_t first_byte, uint64_t image_bytes) {
  const ModelConfig config = shard_config(whole, shard);
  auto held = [&](Role role) {
    if (role == Role::kEmbedding) return shard.holds_embedding(whole);
    return (role != Role::kOutput && role != Role::kOutputNorm) || shard.last_stage;
  };
  std::set<std::pair<Role, uint32_t>> seen;
  for (const TensorEntry& entry : entries) {
    TIE_CHECK_OK(check_entry(config, entry, first_byte, image_bytes));
    if (!seen.emplace(entry.role, entry.layer).second) return corrupt(entry, "is there twice");
  }
  auto require = [&](Role role, uint32_t layer) -> Result<void> {
    if (held(role) && shape_of(config, role).n != 0 && !seen.contains({role, layer}))
      return corrupt({role, layer}, "is missing");
    return {};
  };
  for (Role role : kModelRoles) TIE_CHECK_OK(require(role, 0));
  for (uint32_t layer = 0; layer < config.n_layers; ++layer)
    for (Role role : kLayerRoles) TIE_CHECK_OK(require(role, layer));
  return {};
}

}  // namespace tie::bones
