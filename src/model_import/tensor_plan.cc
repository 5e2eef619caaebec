#include "model_import/tensor_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace tie::model_import {
namespace {

using model_files::SafetensorsTensor;
using model_files::SafetensorsType;

class Planner {
 public:
  Planner(const HfFolder& folder, const HfConfig& config) : folder_(folder), c_(config) {}

  Result<void> vector(const std::string& from, const std::string& to, uint64_t n, bool norm) {
    TIE_TRY(const SafetensorsTensor* tensor, take(from, {n}));
    PlannedTensor out{to, {n}, {SourceTensor{tensor, {}}}};
    out.add_one = norm && c_.family->gemma;
    planned_.push_back(std::move(out));
    return {};
  }

  Result<void> matrix(const std::string& from, const std::string& to, uint64_t n, uint64_t k, bool rotated = false) {
    TIE_TRY(SourceTensor tensor, take_matrix(from, n, k));
    PlannedTensor out{to, {k, n}, {std::move(tensor)}};
    out.matrix = true;
    if (rotated && c_.family->interleaved_rope) out.interleaved_head = c_.head_dim;
    planned_.push_back(std::move(out));
    return {};
  }

  // The bias of a projection, which the family may or may not have.
  Result<void> optional_bias(const std::string& from, const std::string& to, uint64_t n, bool rotated) {
    if (!folder_.has(from)) return {};
    TIE_CHECK_OK(vector(from, to, n, false));
    if (rotated && c_.family->interleaved_rope) planned_.back().interleaved_head = c_.head_dim;
    return {};
  }

  // `pattern` holds one {} for the expert's number.
  Result<void> experts(const std::string& pattern, const std::string& to, uint64_t n, uint64_t k) {
    PlannedTensor out{to, {k, n, c_.n_experts}};
    out.matrix = true;
    for (uint32_t e = 0; e < c_.n_experts; ++e) {
      TIE_TRY(SourceTensor tensor, take_matrix(fmt::format(fmt::runtime(pattern), e), n, k));
      out.parts.push_back(std::move(tensor));
    }
    planned_.push_back(std::move(out));
    return {};
  }

  void numbers(const std::string& to, const std::vector<float>& values) {
    PlannedTensor out{to, {values.size()}};
    out.values = values;
    planned_.push_back(std::move(out));
  }

  // Kept in float32: a router's ties decide which expert is asked.
  void keep_exact() { planned_.back().matrix = false; }
  void ignore(const std::string& name) { used_.insert(name); }

  Result<void> refuse_leftovers() const {
    for (std::string_view name : folder_.names())
      if (!used_.contains(std::string(name)) && !name.ends_with("rotary_emb.inv_freq") && !is_empty_bias(name))
        return fail(Code::kUnsupportedFeature,
                    fmt::format("tensor {} is not part of {} as this program knows it", name, c_.family->hf_name));
    return {};
  }

  std::vector<PlannedTensor> take_all() { return std::move(planned_); }

  // Stored, quantised or not.
  bool has_matrix(const std::string& stem) const {
    return folder_.has(stem + "weight") || folder_.has(stem + "qweight") || folder_.has(stem + "weight_packed");
  }

 private:
  // Tools that quantise write a bias of zeros beside every matrix.
  bool is_empty_bias(std::string_view name) const {
    if (c_.quantised.method == QuantScheme::Method::kNone || !name.ends_with("_proj.bias")) return false;
    const ByteView data = folder_.find(name)->data;
    return std::all_of(data.begin(), data.end(), [](uint8_t byte) { return byte == 0; });
  }

  Result<SourceTensor> take_matrix(const std::string& name, uint64_t n, uint64_t k) {
    auto find = [this](const std::string& wanted) { return folder_.find(wanted); };
    const std::string stem = name.substr(0, name.size() - std::string_view("weight").size());
    TIE_TRY(auto quantised, QuantisedMatrix::find(find, c_.quantised, stem, n, k, used_));
    if (quantised) return SourceTensor{nullptr, std::move(quantised)};
    TIE_TRY(const SafetensorsTensor* tensor, take(name, {n, k}));
    return SourceTensor{tensor, {}};
  }

  Result<const SafetensorsTensor*> take(const std::string& name, const std::vector<uint64_t>& shape) {
    const SafetensorsTensor* tensor = folder_.find(name);
    if (!tensor) return fail(Code::kCorrupt, fmt::format("tensor {} is missing", name));
    if (tensor->type != SafetensorsType::kF32 && tensor->type != SafetensorsType::kF16 &&
        tensor->type != SafetensorsType::kBF16)
      return fail(Code::kUnsupportedFeature, fmt::format("tensor {} is {}; F32, F16 and BF16 can be imported", name,
                                                         model_files::safetensors_type_name(tensor->type)));
    if (tensor->shape != shape)
      return fail(Code::kCorrupt, fmt::format("tensor {} does not have the shape that config.json demands", name));
    used_.insert(name);
    return tensor;
  }

  const HfFolder& folder_;
  const HfConfig& c_;
  std::vector<PlannedTensor> planned_;
  std::set<std::string> used_;
};

Result<void> plan_attention(Planner& p, const HfConfig& c, const std::string& from, const std::string& to) {
  const uint64_t nq = uint64_t{c.n_heads} * c.head_dim, nkv = uint64_t{c.n_kv_heads} * c.head_dim;
  TIE_CHECK_OK(p.vector(from + "input_layernorm.weight", to + "attn_norm.weight", c.n_embd, true));
  const std::string attention = from + "self_attn.";
  if (c.family->fused) {
    TIE_CHECK_OK(p.matrix(attention + "qkv_proj.weight", to + "attn_qkv.weight", nq + 2 * nkv, c.n_embd));
  } else {
    TIE_CHECK_OK(p.matrix(attention + "q_proj.weight", to + "attn_q.weight", nq, c.n_embd, true));
    TIE_CHECK_OK(p.matrix(attention + "k_proj.weight", to + "attn_k.weight", nkv, c.n_embd, true));
    TIE_CHECK_OK(p.matrix(attention + "v_proj.weight", to + "attn_v.weight", nkv, c.n_embd));
    TIE_CHECK_OK(p.optional_bias(attention + "q_proj.bias", to + "attn_q.bias", nq, true));
    TIE_CHECK_OK(p.optional_bias(attention + "k_proj.bias", to + "attn_k.bias", nkv, true));
    TIE_CHECK_OK(p.optional_bias(attention + "v_proj.bias", to + "attn_v.bias", nkv, false));
  }
  if (c.family->qk_norm) {
    TIE_CHECK_OK(p.vector(attention + "q_norm.weight", to + "attn_q_norm.weight", c.head_dim, true));
    TIE_CHECK_OK(p.vector(attention + "k_norm.weight", to + "attn_k_norm.weight", c.head_dim, true));
  }
  TIE_CHECK_OK(p.matrix(attention + "o_proj.weight", to + "attn_output.weight", c.n_embd, nq));
  if (!c.family->gemma) return {};
  return p.vector(from + "post_attention_layernorm.weight", to + "post_attention_norm.weight", c.n_embd, true);
}

Result<void> plan_experts(Planner& p, const HfConfig& c, const std::string& from, const std::string& to) {
  const bool mixtral = c.family->experts == ExpertNames::kMixtral;
  const std::string block = from + (mixtral ? "block_sparse_moe." : "mlp.");
  const std::string gate = mixtral ? "w1" : "gate_proj", up = mixtral ? "w3" : "up_proj",
                    down = mixtral ? "w2" : "down_proj";
  TIE_CHECK_OK(p.matrix(block + "gate.weight", to + "ffn_gate_inp.weight", c.n_experts, c.n_embd));
  p.keep_exact();
  TIE_CHECK_OK(p.experts(block + "experts.{}." + gate + ".weight", to + "ffn_gate_exps.weight", c.n_ff, c.n_embd));
  TIE_CHECK_OK(p.experts(block + "experts.{}." + up + ".weight", to + "ffn_up_exps.weight", c.n_ff, c.n_embd));
  return p.experts(block + "experts.{}." + down + ".weight", to + "ffn_down_exps.weight", c.n_embd, c.n_ff);
}

Result<void> plan_feed_forward(Planner& p, const HfConfig& c, const std::string& from, const std::string& to) {
  const bool gemma = c.family->gemma;
  TIE_CHECK_OK(p.vector(from + (gemma ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight"),
                        to + "ffn_norm.weight", c.n_embd, true));
  if (c.n_experts != 0) return plan_experts(p, c, from, to);
  if (c.family->fused) {
    TIE_CHECK_OK(p.matrix(from + "mlp.gate_up_proj.weight", to + "ffn_up.weight", 2 * uint64_t{c.n_ff}, c.n_embd));
  } else {
    TIE_CHECK_OK(p.matrix(from + "mlp.gate_proj.weight", to + "ffn_gate.weight", c.n_ff, c.n_embd));
    TIE_CHECK_OK(p.matrix(from + "mlp.up_proj.weight", to + "ffn_up.weight", c.n_ff, c.n_embd));
  }
  TIE_CHECK_OK(p.matrix(from + "mlp.down_proj.weight", to + "ffn_down.weight", c.n_embd, c.n_ff));
  if (!gemma) return {};
  return p.vector(from + "post_feedforward_layernorm.weight", to + "post_ffw_norm.weight", c.n_embd, true);
}

}  // namespace

Result<std::vector<PlannedTensor>> plan_tensors(const HfFolder& folder, const HfConfig& c) {
  Planner p(folder, c);
  TIE_CHECK_OK(p.matrix("model.embed_tokens.weight", "token_embd.weight", c.n_vocab, c.n_embd));
  TIE_CHECK_OK(p.vector("model.norm.weight", "output_norm.weight", c.n_embd, true));
  // A tied checkpoint may store the head as well; the embedding is what counts.
  if (c.tied.value_or(!p.has_matrix("lm_head.")))
    p.ignore("lm_head.weight");
  else
    TIE_CHECK_OK(p.matrix("lm_head.weight", "output.weight", c.n_vocab, c.n_embd));
  if (!c.rope_factors.empty())
    p.numbers(c.rope_scaling == "longrope" ? "rope_factors_short.weight" : "rope_freqs.weight", c.rope_factors);
  for (uint32_t i = 0; i < c.n_layers; ++i) {
    const std::string from = fmt::format("model.layers.{}.", i), to = fmt::format("blk.{}.", i);
    TIE_CHECK_OK(plan_attention(p, c, from, to));
    TIE_CHECK_OK(plan_feed_forward(p, c, from, to));
  }
  TIE_CHECK_OK(p.refuse_leftovers());
  return p.take_all();
}

std::optional<uint32_t> implied_head_dim(const HfFolder& folder) {
  const auto heads = folder.config().find("num_attention_heads");
  const SafetensorsTensor* q = folder.find("model.layers.0.self_attn.q_proj.weight");
  if (heads == folder.config().end() || !heads->is_number_unsigned() || !q || q->shape.size() != 2) return std::nullopt;
  const auto n = heads->get<uint64_t>();
  if (n == 0 || q->shape[0] % n != 0 || q->shape[0] / n > 4096) return std::nullopt;
  return static_cast<uint32_t>(q->shape[0] / n);
}

}  // namespace tie::model_import
