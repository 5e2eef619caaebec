// Which of the known methods a checkpoint's quantization_config announces.
#include <fmt/format.h>

#include <algorithm>

#include "model_import/json_fields.h"
#include "model_import/quantised_matrix.h"

namespace tie::model_import {
namespace {

using Method = QuantScheme::Method;

std::unexpected<Error> unsupported(const std::string& what, const std::string& given) {
  return fail(Code::kUnsupportedFeature,
              fmt::format("the checkpoint is quantised by {} \"{}\", which this program does not read; take another "
                          "quantisation, the unquantised one or a GGUF file",
                          what, given.substr(0, 64)));
}

// [rows, inputs] that share a scale.
Result<void> read_block(const Fields& f, const char* key, QuantScheme& out) {
  const nlohmann::json* block = f.find(key);
  if (!block || block->is_null()) return {};
  auto usable = [](const nlohmann::json& v) {
    return v.is_number_unsigned() && v.get<uint64_t>() >= 1 && v.get<uint64_t>() <= (1u << 20);
  };
  if (!block->is_array() || block->size() != 2 || !usable((*block)[0]) || !usable((*block)[1]))
    return f.wrong(key, "two numbers");
  out.block_rows = (*block)[0].get<uint32_t>(), out.block_inputs = (*block)[1].get<uint32_t>();
  return {};
}

// How many bits a code has follows from shapes; others than these do not lie in words as those do.
Result<void> check_bits(const Fields& f, const char* key, const char* method, bool eight) {
  TIE_TRY(const uint32_t bits, f.whole_or(key, 4));
  if (bits == 4 || (bits == 8 && eight)) return {};
  return unsupported(method, std::to_string(bits));
}

Result<void> read_gptq(const Fields& f, QuantScheme& out) {
  out.method = Method::kGptq;
  TIE_CHECK_OK(check_bits(f, "bits", "gptq with bits", true));
  TIE_TRY(const std::string format, f.text_or("checkpoint_format", "gptq"));
  if (format != "gptq" && format != "gptq_v2") return unsupported("gptq with checkpoint_format", format);
  out.zeros_less_one = format == "gptq";
  return {};
}

Result<void> read_awq(const Fields& f, QuantScheme& out) {
  out.method = Method::kAwq;
  TIE_CHECK_OK(check_bits(f, "bits", "awq with bits", false));
  TIE_TRY(std::string version, f.text_or("version", "gemm"));
  std::transform(version.begin(), version.end(), version.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  if (version != "gemm") return unsupported("awq with version", version);
  return {};
}

// A member that changes what weights mean unless it is absent or empty.
Result<void> refuse_unless_empty(const Fields& f, const char* key) {
  const nlohmann::json* value = f.find(key);
  if (!value || value->is_null() || value->empty()) return {};
  return unsupported("compressed-tensors with", key);
}

Result<void> read_compressed(const Fields& f, QuantScheme& out) {
  out.method = Method::kCompressed;
  TIE_TRY(const std::string format, f.text_or("format", "pack-quantized"));
  if (format != "pack-quantized" && format != "int-quantized" && format != "float-quantized" &&
      format != "naive-quantized")
    return unsupported("compressed-tensors with format", format);
  TIE_CHECK_OK(refuse_unless_empty(f, "transform_config"));
  const nlohmann::json* sparsity = f.find("sparsity_config");
  if (sparsity && sparsity->is_object() && !sparsity->empty() &&
      sparsity->value("format", nlohmann::json("dense")) != "dense")
    return unsupported("compressed-tensors with", "sparsity_config");
  const nlohmann::json* groups = f.find("config_groups");
  if (!groups || groups->is_null()) return {};
  if (!groups->is_object()) return f.wrong("config_groups", "an object");
  for (const auto& [name, group] : groups->items()) {
    const auto weights = group.find("weights");
    if (!group.is_object() || weights == group.end() || !weights->is_object()) continue;
    const Fields of_weights(*weights, "config.json: weights of config_groups");
    TIE_CHECK_OK(read_block(of_weights, "block_structure", out));
    if (format == "pack-quantized")
      TIE_CHECK_OK(check_bits(of_weights, "num_bits", "compressed-tensors with num_bits", true));
  }
  return {};
}

}  // namespace

Result<QuantScheme> read_scheme(const nlohmann::json& config) {
  QuantScheme out;
  const auto found = config.find("quantization_config");
  if (found == config.end() || found->is_null()) return out;
  if (!found->is_object()) return fail(Code::kCorrupt, "config.json: quantization_config is not an object");
  const Fields f(*found, "config.json: quantization_config");
  TIE_TRY(const std::string method, f.text_or("quant_method", ""));
  if (method == "gptq") {
    TIE_CHECK_OK(read_gptq(f, out));
  } else if (method == "awq") {
    TIE_CHECK_OK(read_awq(f, out));
  } else if (method == "compressed-tensors") {
    TIE_CHECK_OK(read_compressed(f, out));
  } else if (method == "fp8") {
    out.method = Method::kFp8;
    TIE_CHECK_OK(read_block(f, "weight_block_size", out));
  } else {
    return unsupported("the method", method);
  }
  return out;
}

}  // namespace tie::model_import
