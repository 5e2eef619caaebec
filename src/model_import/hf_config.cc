#include "model_import/hf_config.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "model_import/hf_rope.h"
#include "model_import/json_fields.h"

namespace tie::model_import {
namespace {

using enum ExpertNames;

constexpr Family kFamilies[] = {
    {"LlamaForCausalLM", "llama", true, false, false, false, kNone, 1e-6, 1e4},
    {"MistralForCausalLM", "llama", true, false, false, false, kNone, 1e-6, 1e4},
    {"MixtralForCausalLM", "llama", true, false, false, false, kMixtral, 1e-5, 1e6},
    {"Qwen2ForCausalLM", "qwen2", false, false, false, false, kNone, 1e-6, 1e4},
    {"Qwen3ForCausalLM", "qwen3", false, false, false, true, kNone, 1e-6, 1e4},
    {"Qwen3MoeForCausalLM", "qwen3moe", false, false, false, true, kQwen, 1e-6, 1e4},
    {"Gemma2ForCausalLM", "gemma2", false, true, false, false, kNone, 1e-6, 1e4},
    {"Gemma3ForCausalLM", "gemma3", false, true, false, true, kNone, 1e-6, 1e6},
    {"Phi3ForCausalLM", "phi3", false, false, true, false, kNone, 1e-5, 1e4},
};

Result<const Family*> find_family(const nlohmann::json& config) {
  const auto names = config.find("architectures");
  if (names == config.end() || !names->is_array() || names->empty() || !(*names)[0].is_string())
    return fail(Code::kCorrupt, "config.json names no architecture");
  const auto name = (*names)[0].get<std::string>();
  std::string known;
  for (const Family& family : kFamilies) {
    if (name == family.hf_name) return &family;
    known += (known.empty() ? "" : ", ") + std::string(family.hf_name);
  }
  return fail(Code::kUnsupportedFeature,
              fmt::format("architecture {} is not supported; these are: {}", name.substr(0, 64), known));
}

Result<void> read_sizes(const Fields& f, std::optional<uint32_t> head_dim, HfConfig& c) {
  TIE_TRY(c.n_layers, f.whole("num_hidden_layers"));
  TIE_TRY(c.n_embd, f.whole("hidden_size"));
  TIE_TRY(c.n_ff, f.whole("intermediate_size"));
  TIE_TRY(c.n_heads, f.whole("num_attention_heads"));
  TIE_TRY(c.n_kv_heads, f.whole_or("num_key_value_heads", c.n_heads));
  TIE_TRY(c.n_vocab, f.whole("vocab_size"));
  TIE_TRY(c.context, f.whole("max_position_embeddings"));
  if (c.n_heads == 0) return fail(Code::kCorrupt, "config.json: num_attention_heads is 0");
  TIE_TRY(c.head_dim, f.whole_or("head_dim", head_dim.value_or(c.n_embd / c.n_heads)));
  TIE_TRY(const double rotated, f.number_or("partial_rotary_factor", 1.0));
  if (!(rotated > 0 && rotated <= 1)) return fail(Code::kCorrupt, "config.json: partial_rotary_factor is out of range");
  c.rope_dim = static_cast<uint32_t>(c.head_dim * rotated);
  TIE_TRY(c.norm_epsilon, f.number_or("rms_norm_eps", c.family->norm_epsilon));
  TIE_TRY(c.attention_soft_cap, f.number_or("attn_logit_softcapping", 0.0));
  TIE_TRY(c.logit_soft_cap, f.number_or("final_logit_softcapping", 0.0));
  TIE_TRY(const double scalar, f.number_or("query_pre_attn_scalar", 0.0));
  if (scalar > 0) c.attention_scale = 1.0 / std::sqrt(scalar);
  if (f.has("tie_word_embeddings")) {
    TIE_TRY(const bool tied, f.flag_or("tie_word_embeddings", false));
    c.tied = tied;
  } else if (c.family->gemma) {
    c.tied = true;
  }
  return {};
}

// Bounds for the products and tables that follow; bones checks the finished file again, field by field.
Result<void> check_ranges(const HfConfig& c) {
  if (c.n_layers == 0 || c.n_layers > 512 || c.n_embd == 0 || c.n_embd > (1u << 17) || c.n_ff == 0 ||
      c.n_ff > (1u << 17) || c.head_dim == 0 || c.head_dim > 4096 || c.n_heads > 4096 || c.n_kv_heads > 4096 ||
      c.n_experts > 4096 || c.n_vocab > (1u << 22) || c.rope_dim % 2 != 0 || c.rope_dim > c.head_dim)
    return fail(Code::kCorrupt, "config.json: a size is out of range");
  return {};
}

Result<void> check_activation(const Fields& f, const HfConfig& c) {
  const char* wanted = c.family->gemma ? "gelu_pytorch_tanh" : "silu";
  const char* key = c.family->gemma && f.has("hidden_activation") ? "hidden_activation" : "hidden_act";
  TIE_TRY(const std::string given, f.text_or(key, wanted));
  if (given == wanted || (c.family->gemma && key == std::string_view("hidden_act"))) return {};
  return fail(Code::kUnsupportedFeature,
              fmt::format("config.json: {} \"{}\" is not supported", key, given.substr(0, 64)));
}

Result<void> read_experts(const Fields& f, HfConfig& c) {
  if (c.family->experts == kNone) return {};
  TIE_TRY(c.n_experts, f.whole(c.family->experts == kMixtral ? "num_local_experts" : "num_experts"));
  TIE_TRY(c.n_experts_used, f.whole("num_experts_per_tok"));
  if (c.family->experts == kMixtral) return {};
  TIE_TRY(c.n_ff, f.whole("moe_intermediate_size"));
  TIE_TRY(c.normalise_experts, f.flag_or("norm_topk_prob", false));
  TIE_TRY(const uint32_t step, f.whole_or("decoder_sparse_step", 1));
  if (step != 1)
    return fail(Code::kUnsupportedFeature, "config.json: decoder_sparse_step other than 1 is not supported");
  const nlohmann::json* dense = f.find("mlp_only_layers");
  if (dense && !dense->empty()) return fail(Code::kUnsupportedFeature, "config.json: mlp_only_layers is not supported");
  return {};
}

// layer_types: sliding and full layers must alternate with one period.
Result<void> read_layer_types(const nlohmann::json& types, uint32_t window, HfConfig& c) {
  if (!types.is_array() || types.size() != c.n_layers)
    return fail(Code::kCorrupt, "config.json: layer_types does not name every layer");
  uint32_t first_full = c.n_layers, sliding = 0;
  for (uint32_t i = 0; i < c.n_layers; ++i) {
    const bool full = types[i] == "full_attention";
    if (!full && types[i] != "sliding_attention")
      return fail(Code::kUnsupportedFeature, "config.json: layer_types holds an unknown kind of attention");
    if (full && first_full == c.n_layers) first_full = i;
    sliding += !full;
  }
  if (sliding == 0) return {};
  const uint32_t pattern = sliding == c.n_layers ? 0 : first_full + 1;
  for (uint32_t i = 0; i < c.n_layers; ++i)
    if ((types[i] == "full_attention") != (pattern != 0 && (i + 1) % pattern == 0))
      return fail(Code::kUnsupportedFeature, "config.json: layer_types follows no single period");
  c.sliding_window = window, c.sliding_pattern = pattern;
  return {};
}

// Which layers see how far back.
Result<void> read_window(const Fields& f, HfConfig& c) {
  const std::string_view architecture = c.family->architecture;
  const bool qwen = architecture.starts_with("qwen"), gemma = c.family->gemma;
  TIE_TRY(const bool used, f.flag_or("use_sliding_window", !qwen));
  if (!used) return {};
  TIE_TRY(const uint32_t window,
          f.whole_or("sliding_window", gemma || std::string_view(c.family->hf_name).starts_with("Mistral") ? 4096 : 0));
  if (window == 0 || (f.has("sliding_window") && f.find("sliding_window")->is_null())) return {};
  if (const nlohmann::json* types = f.find("layer_types"); types && !types->is_null())
    return read_layer_types(*types, window, c);
  if (qwen) {
    TIE_TRY(const uint32_t full_layers, f.whole_or("max_window_layers", 0));
    if (full_layers >= c.n_layers) return {};
    if (full_layers != 0)
      return fail(Code::kUnsupportedFeature, "config.json: max_window_layers inside the model is not supported");
  }
  c.sliding_window = window;
  if (architecture == "gemma2") c.sliding_pattern = 2;
  if (architecture == "gemma3") {
    TIE_TRY(c.sliding_pattern, f.whole_or("sliding_window_pattern", f.has("_sliding_window_pattern") ? 0 : 6));
    if (c.sliding_pattern == 0) {
      TIE_TRY(c.sliding_pattern, f.whole("_sliding_window_pattern"));
    }
  }
  return {};
}

}  // namespace

Result<HfConfig> read_config(const nlohmann::json& config, std::optional<uint32_t> head_dim) {
  HfConfig c;
  TIE_TRY(c.family, find_family(config));
  TIE_TRY(c.quantised, read_scheme(config));
  const Fields fields(config);
  TIE_CHECK_OK(read_sizes(fields, head_dim, c));
  TIE_CHECK_OK(check_activation(fields, c));
  TIE_CHECK_OK(read_experts(fields, c));
  TIE_CHECK_OK(check_ranges(c));
  TIE_CHECK_OK(read_window(fields, c));
  TIE_CHECK_OK(read_rope(fields, c));
  TIE_CHECK_OK(check_ranges(c));
  return c;
}

void write_metadata(const HfConfig& c, const std::string& title, model_files::GgufHeader& out) {
  const std::string a = std::string(c.family->architecture) + ".";
  out.text("general.architecture", c.family->architecture);
  out.text("general.name", title);
  const std::pair<const char*, uint32_t> integers[] = {
      {"block_count", c.n_layers},          {"context_length", c.context},
      {"embedding_length", c.n_embd},       {"feed_forward_length", c.n_ff},
      {"attention.head_count", c.n_heads},  {"attention.head_count_kv", c.n_kv_heads},
      {"attention.key_length", c.head_dim}, {"attention.value_length", c.head_dim},
      {"rope.dimension_count", c.rope_dim}};
  for (const auto& [key, value] : integers) out.u32(a + key, value);
  out.f32(a + "attention.layer_norm_rms_epsilon", static_cast<float>(c.norm_epsilon));
  if (c.n_experts != 0) {
    out.u32(a + "expert_count", c.n_experts);
    out.u32(a + "expert_used_count", c.n_experts_used);
    out.u32(a + "expert_feed_forward_length", c.n_ff);
    out.boolean(a + "expert_weights_norm", c.normalise_experts);
  }
  if (c.sliding_window != 0) {
    out.u32(a + "attention.sliding_window", c.sliding_window);
    out.u32("tie.sliding_pattern", c.sliding_pattern);
  }
  const std::pair<const char*, double> numbers[] = {{"attn_logit_softcapping", c.attention_soft_cap},
                                                    {"final_logit_softcapping", c.logit_soft_cap},
                                                    {"attention.scale", c.attention_scale}};
  for (const auto& [key, value] : numbers)
    if (value != 0) out.f32(a + key, static_cast<float>(value));
  write_rope_metadata(c, a, out);
}

}  // namespace tie::model_import
