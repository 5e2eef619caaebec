#include "model_import/hf_rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tie::model_import {
namespace {

Result<void> read_llama3(const Fields& scaling, HfConfig& c) {
  TIE_TRY(const double factor, scaling.number_or("factor", 8.0));
  TIE_TRY(const double low, scaling.number_or("low_freq_factor", 1.0));
  TIE_TRY(const double high, scaling.number_or("high_freq_factor", 4.0));
  TIE_TRY(const uint32_t original, scaling.whole_or("original_max_position_embeddings", 8192));
  if (!(factor > 0) || !(low > 0) || !(high > low) || original == 0)
    return fail(Code::kCorrupt, "config.json: the llama3 rope parameters are out of range");
  for (uint32_t i = 0; i < c.rope_dim / 2; ++i) {
    const double wavelength = 2 * std::numbers::pi * std::pow(c.rope_base, 2.0 * i / c.rope_dim);
    const double smooth = std::clamp((original / wavelength - low) / (high - low), 0.0, 1.0);
    c.rope_factors.push_back(static_cast<float>(1.0 / ((1 - smooth) / factor + smooth)));
  }
  return {};
}

Result<void> read_yarn(const Fields& scaling, HfConfig& c) {
  for (const char* key : {"mscale", "mscale_all_dim"})
    if (scaling.has(key))
      return fail(Code::kUnsupportedFeature, fmt::format("config.json: yarn with {} is not supported", key));
  TIE_TRY(const bool truncate, scaling.flag_or("truncate", true));
  if (!truncate) return fail(Code::kUnsupportedFeature, "config.json: yarn without truncation is not supported");
  c.rope_scaling = "yarn";
  TIE_TRY(c.original_context, scaling.whole_or("original_max_position_embeddings", c.context));
  TIE_TRY(c.rope_factor, scaling.number_or("factor", double(c.context) / std::max(1u, c.original_context)));
  TIE_TRY(c.yarn_beta_fast, scaling.number_or("beta_fast", 32.0));
  TIE_TRY(c.yarn_beta_slow, scaling.number_or("beta_slow", 1.0));
  if (!(c.rope_factor > 0)) return fail(Code::kCorrupt, "config.json: the yarn factor is out of range");
  const double usual = 1.0 + 0.1 * std::log(std::max(1.0, c.rope_factor));
  TIE_TRY(const double attention, scaling.number_or("attention_factor", usual));
  c.rope_attention_factor = attention / usual;  // the file's key multiplies the usual one
  return {};
}

Result<void> read_longrope(const Fields& fields, const Fields& scaling, HfConfig& c) {
  c.rope_scaling = "longrope";
  TIE_TRY(const uint32_t outer, fields.whole_or("original_max_position_embeddings", c.context));
  TIE_TRY(c.original_context, scaling.whole_or("original_max_position_embeddings", outer));
  const nlohmann::json* factors = scaling.find("short_factor");
  if (!factors || !factors->is_array() || factors->size() != c.rope_dim / 2 || c.original_context < 2)
    return fail(Code::kCorrupt, "config.json: short_factor does not hold one number for each rotary pair");
  for (const auto& value : *factors) {
    if (!value.is_number() || !(value.get<double>() > 0) || !std::isfinite(value.get<double>()))
      return scaling.wrong("short_factor", "a list of positive numbers");
    c.rope_factors.push_back(value.get<float>());
  }
  const double stretch = double(c.context) / c.original_context;
  const double usual = stretch <= 1 ? 1.0 : std::sqrt(1 + std::log(stretch) / std::log(double(c.original_context)));
  TIE_TRY(c.rope_attention_factor, scaling.number_or("attention_factor", usual));
  return {};
}

Result<void> read_scaling(const Fields& fields, const nlohmann::json& object, HfConfig& c) {
  if (!object.is_object()) return fields.wrong("rope_scaling", "an object");
  const Fields scaling(object, "config.json: rope_scaling");
  TIE_TRY(const std::string old_kind, scaling.text_or("type", "default"));
  TIE_TRY(const std::string kind, scaling.text_or("rope_type", old_kind.c_str()));
  if (kind == "default" || kind == "none") return {};
  if (kind == "llama3") return read_llama3(scaling, c);
  if (kind == "yarn") return read_yarn(scaling, c);
  if (kind == "longrope" || kind == "su") return read_longrope(fields, scaling, c);
  if (kind != "linear")
    return fail(Code::kUnsupportedFeature,
                fmt::format("config.json: rope scaling \"{}\" is not supported", kind.substr(0, 64)));
  c.rope_scaling = "linear";
  TIE_TRY(c.rope_factor, scaling.number_or("factor", 1.0));
  return {};
}

// rope_parameters of the newer form; Gemma 3 has one for each kind of layer.
Result<void> read_parameters(const Fields& fields, const nlohmann::json& object, HfConfig& c) {
  if (!object.is_object()) return fields.wrong("rope_parameters", "an object");
  const auto full = object.find("full_attention"), local = object.find("sliding_attention");
  const nlohmann::json& global = full == object.end() ? object : *full;
  if (!global.is_object()) return fields.wrong("rope_parameters", "an object of objects");
  TIE_TRY(c.rope_base, Fields(global).number_or("rope_theta", c.rope_base));
  TIE_TRY(const double rotated, Fields(global).number_or("partial_rotary_factor", double(c.rope_dim) / c.head_dim));
  c.rope_dim = static_cast<uint32_t>(std::lround(c.head_dim * std::clamp(rotated, 0.0, 1.0)));
  if (local != object.end()) {
    if (!local->is_object()) return fields.wrong("rope_parameters", "an object of objects");
    const Fields sliding(*local);
    TIE_TRY(c.local_rope_base, sliding.number_or("rope_theta", c.local_rope_base));
    TIE_TRY(const std::string kind, sliding.text_or("rope_type", "default"));
    if (kind != "default")
      return fail(Code::kUnsupportedFeature, "config.json: rope scaling of sliding layers is not supported");
  }
  return read_scaling(fields, global, c);
}

}  // namespace

Result<void> read_rope(const Fields& fields, HfConfig& c) {
  if (c.head_dim == 0) return fail(Code::kCorrupt, "config.json: head_dim is 0");
  TIE_TRY(c.rope_base, fields.number_or("rope_theta", c.family->rope_base));
  if (std::string_view(c.family->architecture) == "gemma3") {
    TIE_TRY(c.local_rope_base, fields.number_or("rope_local_base_freq", 10000.0));
  }
  const nlohmann::json* parameters = fields.find("rope_parameters");
  const nlohmann::json* scaling = fields.find("rope_scaling");
  if (parameters && !parameters->is_null()) {
    TIE_CHECK_OK(read_parameters(fields, *parameters, c));
  } else if (scaling && !scaling->is_null()) {
    TIE_CHECK_OK(read_scaling(fields, *scaling, c));
  }
  if (!(c.rope_base > 0) || !(c.rope_factor > 0) || !(c.rope_attention_factor > 0))
    return fail(Code::kCorrupt, "config.json: a rope parameter is out of range");
  return {};
}

void write_rope_metadata(const HfConfig& c, const std::string& a, model_files::GgufHeader& out) {
  out.f32(a + "rope.freq_base", static_cast<float>(c.rope_base));
  if (c.local_rope_base > 0) out.f32(a + "rope.freq_base_swa", static_cast<float>(c.local_rope_base));
  if (c.rope_scaling == "none") return;
  out.text(a + "rope.scaling.type", c.rope_scaling);
  out.f32(a + "rope.scaling.factor", static_cast<float>(c.rope_factor));
  out.f32(a + "rope.scaling.attn_factor", static_cast<float>(c.rope_attention_factor));
  if (c.original_context != 0) out.u32(a + "rope.scaling.original_context_length", c.original_context);
  if (c.rope_scaling == "yarn") {
    out.f32(a + "rope.scaling.yarn_beta_fast", static_cast<float>(c.yarn_beta_fast));
    out.f32(a + "rope.scaling.yarn_beta_slow", static_cast<float>(c.yarn_beta_slow));
  }
}

}  // namespace tie::model_import
