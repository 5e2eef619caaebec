// What config.json says about a decoder-only transformer, in the terms that the model file's metadata uses. Everything
// that changes the numbers is either understood or refused by name: an importer that ignores a field makes a model that
// answers wrongly. Accepts both forms in use: rope_theta / rope_scaling / sliding_window_pattern, and rope_parameters /
// layer_types. Pure. Source: the public config descriptions of `transformers`.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "model_files/gguf_header.h"
#include "model_import/quantised_matrix.h"

namespace tie::model_import {

enum class ExpertNames { kNone, kMixtral, kQwen };

// What distinguishes the families; a row of the table in hf_config.cc.
struct Family {
  const char* hf_name;       // entry of config.json's "architectures"
  const char* architecture;  // of the file
  bool interleaved_rope;     // the file keeps rotary pairs side by side
  bool gemma;                // norms stored less one, four norms a layer, GELU, embeddings tied unless said
  bool fused;                // qkv_proj, gate_up_proj
  bool qk_norm;
  ExpertNames experts;
  double norm_epsilon, rope_base;  // when config.json is silent
};

struct HfConfig {
  const Family* family = nullptr;
  QuantScheme quantised;
  uint32_t n_layers = 0, n_embd = 0, n_ff = 0, n_heads = 0, n_kv_heads = 0, n_vocab = 0, context = 0;
  uint32_t head_dim = 0;
  uint32_t rope_dim = 0;
  uint32_t n_experts = 0, n_experts_used = 0;
  bool normalise_experts = true;
  std::optional<bool> tied;
  double norm_epsilon = 0;
  double rope_base = 0, local_rope_base = 0;
  std::string rope_scaling = "none";  // none, linear, yarn, longrope
  double rope_factor = 1, rope_attention_factor = 1;
  double yarn_beta_fast = 32, yarn_beta_slow = 1;
  uint32_t original_context = 0;
  std::vector<float> rope_factors;                                         // divisors per rotary pair: llama3, longrope
  double attention_soft_cap = 0, logit_soft_cap = 0, attention_scale = 0;  // 0: none, or by head_dim
  uint32_t sliding_window = 0,
           sliding_pattern = 0;  // a window: layer i is global when (i + 1) % pattern == 0; 0: none is
};

// kUnsupportedFeature names the architecture or field; kCorrupt a field of the wrong kind or out of range.
// `head_dim`: what the projections' shapes imply, for configs that do not say.
Result<HfConfig> read_config(const nlohmann::json& config, std::optional<uint32_t> head_dim);

void write_metadata(const HfConfig& config, const std::string& title, model_files::GgufHeader& out);

}  // namespace tie::model_import
