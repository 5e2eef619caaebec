#include "inference/bones/model/architecture.h"

#include <cmath>
#include <cstring>
#include <set>

namespace tie::bones {
namespace {

using model_files::Gguf;
using model_files::GgufTensor;

// The declarative description of a family.
struct Family {
  const char* name;
  bool interleaved_rope;  // the file keeps rotary pairs side by side
  Activation activation;
  bool qk_norm, post_norms;
  bool scaled_embeddings;  // times sqrt(n_embd)
  bool fused;              // attn_qkv and one ffn_up that holds gate and up
  uint32_t
      sliding_pattern;    // with `sliding_window`: every pattern-th layer is global; 0 = the family has no window here
  float local_rope_base;  // 0 = as the global one
  uint32_t wide_scale_layers;  // a model of this many layers scales q by n_embd / n_heads instead of head_dim
};

constexpr Family kFamilies[] = {
    {"llama", true, Activation::kSilu, false, false, false, false, 0, 0.0f, 0},
    {"mistral", true, Activation::kSilu, false, false, false, false, 0, 0.0f, 0},
    {"qwen2", false, Activation::kSilu, false, false, false, false, 0, 0.0f, 0},
    {"qwen3", false, Activation::kSilu, true, false, false, false, 0, 0.0f, 0},
    {"qwen3moe", false, Activation::kSilu, true, false, false, false, 0, 0.0f, 0},
    {"gemma2", false, Activation::kGeluTanh, false, true, true, false, 2, 0.0f, 46},
    {"gemma3", false, Activation::kGeluTanh, true, true, true, false, 6, 10000.0f, 62},
    {"phi3", false, Activation::kSilu, false, false, false, true, 0, 0.0f, 0},
};

const Family* find_family(std::string_view name) {
  for (const Family& family : kFamilies)
    if (name == family.name) return &family;
  return nullptr;
}

// Reads "<architecture>.<key>".
class Keys {
 public:
  Keys(const Gguf& file, std::string_view architecture) : file_(file), prefix_(std::string(architecture) + ".") {}

  bool has(const char* key) const { return file_.metadata().contains(prefix_ + key); }

  Result<uint32_t> integer(const char* key, uint32_t max) const {
    TIE_TRY(const uint64_t value, file_.get_u64(prefix_ + key));
    if (value > max)
      return fail(Code::kCorrupt,
                  prefix_ + key + " is " + std::to_string(value) + ", more than " + std::to_string(max));
    return static_cast<uint32_t>(value);
  }
  Result<uint32_t> integer_or(const char* key, uint32_t max, uint32_t otherwise) const {
    return has(key) ? integer(key, max) : Result<uint32_t>(otherwise);
  }
  Result<float> number_or(const char* key, float otherwise) const {
    if (!has(key)) return otherwise;
    TIE_TRY(const double value, file_.get_f64(prefix_ + key));
    if (!std::isfinite(value)) return fail(Code::kCorrupt, prefix_ + key + " is not a finite number");
    return static_cast<float>(value);
  }
  Result<bool> flag_or(const char* key, bool otherwise) const {
    return has(key) ? file_.get_bool(prefix_ + key) : Result<bool>(otherwise);
  }
  Result<std::string> text_or(const char* key, const char* otherwise) const {
    if (!has(key)) return std::string(otherwise);
    TIE_TRY(const std::string_view value, file_.get_string(prefix_ + key));
    return std::string(value);
  }

 private:
  const Gguf& file_;
  std::string prefix_;
};

Result<void> read_sizes(const Keys& keys, ModelConfig& c) {
  TIE_TRY(c.n_layers, keys.integer("block_count", kMaxLayers));
  TIE_TRY(c.n_embd, keys.integer("embedding_length", kMaxWidth));
  TIE_TRY(c.n_ff, keys.integer("feed_forward_length", kMaxWidth));
  TIE_TRY(c.n_heads, keys.integer("attention.head_count", kMaxHeads));
  TIE_TRY(c.n_kv_heads, keys.integer_or("attention.head_count_kv", kMaxHeads, c.n_heads));
  TIE_TRY(c.context_length, keys.integer("context_length", kMaxContext));
  if (c.n_heads == 0) return fail(Code::kCorrupt, "attention.head_count is 0");
  TIE_TRY(c.head_dim, keys.integer_or("attention.key_length", kMaxHeadDim, c.n_embd / c.n_heads));
  TIE_TRY(const uint32_t value_dim, keys.integer_or("attention.value_length", kMaxHeadDim, c.head_dim));
  if (value_dim != c.head_dim)
    return fail(Code::kUnsupportedFeature, "attention.value_length differs from attention.key_length");
  TIE_TRY(c.rope_dim, keys.integer_or("rope.dimension_count", kMaxHeadDim, c.head_dim));
  TIE_TRY(c.norm_epsilon, keys.number_or("attention.layer_norm_rms_epsilon", 1e-5f));
  TIE_TRY(c.attention_soft_cap, keys.number_or("attn_logit_softcapping", 0.0f));
  TIE_TRY(c.logit_soft_cap, keys.number_or("final_logit_softcapping", 0.0f));
  return {};
}

// Of a mixture of experts: how many there are and are asked. The file's other feed-forward width is of no layer then.
Result<void> read_experts(const Keys& keys, ModelConfig& c) {
  TIE_TRY(c.n_experts, keys.integer_or("expert_count", kMaxExperts, 0));
  if (c.n_experts == 0) return {};
  TIE_TRY(c.n_experts_used, keys.integer("expert_used_count", kMaxExpertsUsed));
  TIE_TRY(c.n_ff, keys.integer_or("expert_feed_forward_length", kMaxWidth, c.n_ff));
  TIE_TRY(const bool normalised, keys.flag_or("expert_weights_norm", true));
  c.normalise_experts = normalised;
  return {};
}

Result<void> read_rope(const Keys& keys, const Family& family, ModelConfig& c) {
  RopeConfig& rope = c.rope_global;
  TIE_TRY(rope.base, keys.number_or("rope.freq_base", family.local_rope_base > 0 ? 1e6f : 10000.0f));
  TIE_TRY(const std::string kind, keys.text_or("rope.scaling.type", "none"));
  TIE_TRY(rope.factor, keys.number_or("rope.scaling.factor", 1.0f));
  TIE_TRY(rope.original_context,
          keys.integer_or("rope.scaling.original_context_length", kMaxContext, c.context_length));
  TIE_TRY(rope.attention_factor, keys.number_or("rope.scaling.attn_factor", 1.0f));
  TIE_TRY(rope.yarn_beta_fast, keys.number_or("rope.scaling.yarn_beta_fast", rope.yarn_beta_fast));
  TIE_TRY(rope.yarn_beta_slow, keys.number_or("rope.scaling.yarn_beta_slow", rope.yarn_beta_slow));
  if (kind == "linear")
    rope.scaling = RopeScaling::kLinear;
  else if (kind == "yarn")
    rope.scaling = RopeScaling::kYarn;
  else if (kind == "longrope")
    c.context_length = std::min(c.context_length, rope.original_context);  // the short factors hold up to here
  else if (kind != "none")
    return fail(Code::kUnsupportedFeature, "rope scaling \"" + kind + "\" is not supported");
  c.rope_local = rope;
  if (family.local_rope_base > 0) {
    c.rope_local = RopeConfig{};
    TIE_TRY(c.rope_local.base, keys.number_or("rope.freq_base_swa", family.local_rope_base));
  }
  return {};
}

// `tie.sliding_pattern` (written by model_import) gives any family a window; without it only those that always have
// one.
Result<void> read_window(const Gguf& file, const Keys& keys, const Family& family, ModelConfig& c) {
  constexpr const char* kPattern = "tie.sliding_pattern";
  c.sliding_pattern = family.sliding_pattern;
  if (file.metadata().contains(kPattern)) {
    TIE_TRY(const uint64_t pattern, file.get_u64(kPattern));
    if (pattern > kMaxLayers) return fail(Code::kCorrupt, "tie.sliding_pattern is out of range");
    c.sliding_pattern = static_cast<uint32_t>(pattern);
  } else if (family.sliding_pattern == 0) {
    return {};
  }
  TIE_TRY(c.sliding_window, keys.integer_or("attention.sliding_window", kMaxContext, 0));
  return {};
}

std::string layer_name(uint32_t layer, const char* part) {
  return "blk." + std::to_string(layer) + "." + part;
}

// Collects the sources and remembers which tensors of the file were used.
class Collector {
 public:
  Collector(const Gguf& file, const Family& family, const ModelConfig& config)
      : file_(file), family_(family), c_(config) {}

  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }

  Result<void> add(Role role, uint32_t layer, const std::string& name, uint32_t n, uint32_t k, uint32_t first_row = 0,
                   uint32_t file_rows = 0) {
    const GgufTensor* tensor = file_.find_tensor(name);
    if (!tensor) return fail(Code::kCorrupt, "tensor " + name + " is missing");
    if (tensor_type_unusable(*tensor))
      return fail(Code::kUnsupportedFeature, "tensor " + name + " has an element type that is not supported");
    const uint64_t rows = file_rows ? file_rows : n;
    const std::vector<uint64_t> matrix{k, rows}, vector{n};
    std::vector<uint64_t> dims = tensor->dims;
    while (dims.size() > (k == 1 ? 1u : 2u) && dims.back() == 1) dims.pop_back();
    if (dims != (k == 1 ? vector : matrix))
      return fail(Code::kCorrupt, "tensor " + name + " does not have the shape that the metadata demands");
    const bool rotated = family_.interleaved_rope &&
                         (role == Role::kQ || role == Role::kK || role == Role::kQBias || role == Role::kKBias);
    out.push_back({role, layer, tensor, n, k, first_row, rotated ? c_.head_dim : 0});
    used_.insert(tensor->name);
    return {};
  }

  // The matrices of all experts, one below the other.
  Result<void> add_experts(Role role, uint32_t layer, const std::string& name, uint32_t n, uint32_t k) {
    const GgufTensor* tensor = file_.find_tensor(name);
    if (!tensor) return fail(Code::kCorrupt, "tensor " + name + " is missing");
    if (tensor_type_unusable(*tensor))
      return fail(Code::kUnsupportedFeature, "tensor " + name + " has an element type that is not supported");
    if (tensor->dims != std::vector<uint64_t>{k, n, c_.n_experts})
      return fail(Code::kCorrupt, "tensor " + name + " does not have the shape that the metadata demands");
    out.push_back({role, layer, tensor, n * c_.n_experts, k});
    used_.insert(tensor->name);
    return {};
  }

  // A tensor nobody asked for would silently change the model's numbers.
  Result<void> refuse_leftovers() const {
    for (const GgufTensor& tensor : file_.tensors()) {
      if (used_.contains(tensor.name) || tensor.name == "rope_factors_long.weight" ||
          tensor.name.ends_with("rotary_emb.inv_freq"))
        continue;
      return fail(Code::kUnsupportedFeature,
                  "tensor " + std::string(tensor.name) + " is not part of this architecture");
    }
    return {};
  }

  std::vector<TensorSource> out;

 private:
  static bool tensor_type_unusable(const GgufTensor& tensor) {
    using enum model_files::TensorType;
    switch (tensor.type) {
      case kF32:
      case kF16:
      case kBF16:
      case kQ8_0:
      case kQ4_0:
      case kQ4_1:
      case kQ5_0:
      case kQ5_1:
      case kQ4_K:
      case kQ5_K:
      case kQ6_K:
        return false;
      default:
        return true;
    }
  }

  const Gguf& file_;
  const Family& family_;
  const ModelConfig& c_;
  std::set<std::string_view> used_;
};

Result<void> add_attention(Collector& all, const ModelConfig& c, bool fused, uint32_t i) {
  const uint32_t nq = c.n_heads * c.head_dim, nkv = c.n_kv_heads * c.head_dim;
  TIE_CHECK_OK(all.add(Role::kAttentionNorm, i, layer_name(i, "attn_norm.weight"), c.n_embd, 1));
  if (fused) {
    const std::string name = layer_name(i, "attn_qkv.weight");
    TIE_CHECK_OK(all.add(Role::kQ, i, name, nq, c.n_embd, 0, nq + 2 * nkv));
    TIE_CHECK_OK(all.add(Role::kK, i, name, nkv, c.n_embd, nq, nq + 2 * nkv));
    TIE_CHECK_OK(all.add(Role::kV, i, name, nkv, c.n_embd, nq + nkv, nq + 2 * nkv));
  } else {
    TIE_CHECK_OK(all.add(Role::kQ, i, layer_name(i, "attn_q.weight"), nq, c.n_embd));
    TIE_CHECK_OK(all.add(Role::kK, i, layer_name(i, "attn_k.weight"), nkv, c.n_embd));
    TIE_CHECK_OK(all.add(Role::kV, i, layer_name(i, "attn_v.weight"), nkv, c.n_embd));
  }
  if (c.qkv_bias) {
    TIE_CHECK_OK(all.add(Role::kQBias, i, layer_name(i, "attn_q.bias"), nq, 1));
    TIE_CHECK_OK(all.add(Role::kKBias, i, layer_name(i, "attn_k.bias"), nkv, 1));
    TIE_CHECK_OK(all.add(Role::kVBias, i, layer_name(i, "attn_v.bias"), nkv, 1));
  }
  if (c.qk_norm) {
    TIE_CHECK_OK(all.add(Role::kQNorm, i, layer_name(i, "attn_q_norm.weight"), c.head_dim, 1));
    TIE_CHECK_OK(all.add(Role::kKNorm, i, layer_name(i, "attn_k_norm.weight"), c.head_dim, 1));
  }
  TIE_CHECK_OK(all.add(Role::kAttentionOutput, i, layer_name(i, "attn_output.weight"), c.n_embd, nq));
  if (c.post_norms)
    TIE_CHECK_OK(all.add(Role::kPostAttentionNorm, i, layer_name(i, "post_attention_norm.weight"), c.n_embd, 1));
  return {};
}

Result<void> add_experts(Collector& all, const ModelConfig& c, uint32_t i) {
  TIE_CHECK_OK(all.add(Role::kFfnNorm, i, layer_name(i, "ffn_norm.weight"), c.n_embd, 1));
  TIE_CHECK_OK(all.add(Role::kRouter, i, layer_name(i, "ffn_gate_inp.weight"), c.n_experts, c.n_embd));
  TIE_CHECK_OK(all.add_experts(Role::kExpertGates, i, layer_name(i, "ffn_gate_exps.weight"), c.n_ff, c.n_embd));
  TIE_CHECK_OK(all.add_experts(Role::kExpertUps, i, layer_name(i, "ffn_up_exps.weight"), c.n_ff, c.n_embd));
  return all.add_experts(Role::kExpertDowns, i, layer_name(i, "ffn_down_exps.weight"), c.n_embd, c.n_ff);
}

Result<void> add_feed_forward(Collector& all, const ModelConfig& c, bool fused, uint32_t i) {
  TIE_CHECK_OK(all.add(Role::kFfnNorm, i, layer_name(i, "ffn_norm.weight"), c.n_embd, 1));
  const std::string up = layer_name(i, "ffn_up.weight");
  if (fused) {
    TIE_CHECK_OK(all.add(Role::kGate, i, up, c.n_ff, c.n_embd, 0, 2 * c.n_ff));
    TIE_CHECK_OK(all.add(Role::kUp, i, up, c.n_ff, c.n_embd, c.n_ff, 2 * c.n_ff));
  } else {
    TIE_CHECK_OK(all.add(Role::kGate, i, layer_name(i, "ffn_gate.weight"), c.n_ff, c.n_embd));
    TIE_CHECK_OK(all.add(Role::kUp, i, up, c.n_ff, c.n_embd));
  }
  TIE_CHECK_OK(all.add(Role::kDown, i, layer_name(i, "ffn_down.weight"), c.n_embd, c.n_ff));
  if (c.post_norms) TIE_CHECK_OK(all.add(Role::kPostFfnNorm, i, layer_name(i, "post_ffw_norm.weight"), c.n_embd, 1));
  return {};
}

}  // namespace

Result<ModelConfig> config_from_gguf(const Gguf& file) {
  TIE_TRY(const std::string_view name, file.get_string("general.architecture"));
  const Family* family = find_family(name);
  if (!family)
    return fail(Code::kUnsupportedFeature, "architecture \"" + std::string(name.substr(0, 64)) + "\" is not supported");
  ModelConfig c;
  std::memcpy(c.architecture, family->name, std::strlen(family->name));
  const Keys keys(file, name);
  TIE_CHECK_OK(read_sizes(keys, c));
  TIE_CHECK_OK(read_experts(keys, c));
  TIE_CHECK_OK(read_rope(keys, *family, c));
  const GgufTensor* embedding = file.find_tensor("token_embd.weight");
  if (!embedding || embedding->dims.size() != 2 || embedding->dims[1] == 0 || embedding->dims[1] > kMaxVocab)
    return fail(Code::kCorrupt, "tensor token_embd.weight is missing or has no usable shape");
  c.n_vocab = static_cast<uint32_t>(embedding->dims[1]);
  c.activation = family->activation;
  c.qk_norm = family->qk_norm;
  c.post_norms = family->post_norms;
  if (family->scaled_embeddings) c.embedding_scale = std::sqrt(static_cast<float>(c.n_embd));
  const bool wide = family->wide_scale_layers != 0 && c.n_layers == family->wide_scale_layers;
  const float usual_scale = 1.0f / std::sqrt(static_cast<float>(wide ? c.n_embd / c.n_heads : c.head_dim));
  TIE_TRY(c.attention_scale, keys.number_or("attention.scale", usual_scale));
  TIE_CHECK_OK(read_window(file, keys, *family, c));
  return c;
}

Result<std::vector<TensorSource>> tensors_from_gguf(const Gguf& file, ModelConfig& config) {
  const Family* family = find_family(config.name());
  tie_check(family != nullptr, "a config from config_from_gguf has a family");
  Collector all(file, *family, config);
  config.tied_embeddings = all.has("output.weight") ? 0 : 1;
  config.qkv_bias = all.has("blk.0.attn_q.bias") ? 1 : 0;
  TIE_CHECK_OK(check_config(config));
  TIE_CHECK_OK(all.add(Role::kEmbedding, 0, "token_embd.weight", config.n_vocab, config.n_embd));
  TIE_CHECK_OK(all.add(Role::kOutputNorm, 0, "output_norm.weight", config.n_embd, 1));
  if (!config.tied_embeddings) TIE_CHECK_OK(all.add(Role::kOutput, 0, "output.weight", config.n_vocab, config.n_embd));
  const char* factors = all.has("rope_freqs.weight") ? "rope_freqs.weight" : "rope_factors_short.weight";
  if (all.has(factors)) TIE_CHECK_OK(all.add(Role::kRopeFactors, 0, factors, config.rope_dim / 2, 1));
  for (uint32_t i = 0; i < config.n_layers; ++i) {
    TIE_CHECK_OK(add_attention(all, config, family->fused, i));
    TIE_CHECK_OK(config.n_experts ? add_experts(all, config, i) : add_feed_forward(all, config, family->fused, i));
  }
  TIE_CHECK_OK(all.refuse_leftovers());
  return std::move(all.out);
}

}  // namespace tie::bones
