// Matrices of weight-only quantised checkpoints, as config.json's quantization_config announces them: GPTQ and AWQ (4
// bits, GPTQ also 8), compressed-tensors (packed 4 and 8 bits, int8, fp8) and fp8 with scales for blocks. Every weight
// is scale * (code - zero), and where 32 inputs in a row share a scale, that is a block of the model file: the codes
// move unchanged, no weight is rounded (scales and minima become f16). Everything else is computed as a float. Pure
// over the folder's headers, but for the zeros and the order of inputs, which decide and are read whole. Hostile
// folders give an error: every shape is checked against n and k before anything is read. Sources: the public formats
// of AutoGPTQ, AutoAWQ, compressed-tensors and of `transformers`' fp8.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/result.h"
#include "model_files/gguf.h"
#include "model_files/safetensors.h"

namespace tie::model_import {

struct QuantScheme {
  enum class Method { kNone, kGptq, kAwq, kCompressed, kFp8 };
  Method method = Method::kNone;
  bool zeros_less_one = false;                // GPTQ of the first version stores its zeros so
  uint32_t block_rows = 0, block_inputs = 0;  // of a scale, where scales stand for blocks; 0: they do not
};

// kUnsupportedFeature names the method or format; kCorrupt a field of the wrong kind. No quantization_config: kNone.
Result<QuantScheme> read_scheme(const nlohmann::json& config);

class QuantisedMatrix {
 public:
  using Find = std::function<const model_files::SafetensorsTensor*(const std::string& name)>;

  // The n by k matrix whose tensors' names begin with `stem` ("....q_proj."). Nothing: this one is not quantised. Adds
  // the names that it reads, or knows to be without meaning for weights, to `used`.
  static Result<std::optional<QuantisedMatrix>> find(const Find& find, const QuantScheme& scheme,
                                                     const std::string& stem, uint64_t n, uint64_t k,
                                                     std::set<std::string>& used);

  // Q4_0, Q4_1 or Q8_0 when the codes can move unchanged.
  std::optional<model_files::TensorType> block_type() const;
  // Row `row` as floats: `out` has k of them.
  void read_row(uint64_t row, std::span<float> out) const;
  // Row `row` as blocks of block_type(), or of Q4_1 where that is Q4_0. kCorrupt: a scale that no f16 can hold.
  Result<void> append_blocks(uint64_t row, model_files::TensorType type, Bytes& out) const;

 private:
  enum class Codes { kGptq, kAwq, kPackedRows, kInt8, kFloat8 };
  struct Names {
    const Find& find;
    const std::string& stem;
    std::set<std::string>& used;
    const model_files::SafetensorsTensor* operator()(const char* name) const;
  };

  Result<void> take_columns(const Names& names, const QuantScheme& scheme);  // GPTQ and AWQ
  Result<void> take_rows(const Names& names, const QuantScheme& scheme);     // the others
  Result<void> take_row_scales(const QuantScheme& scheme);
  Result<void> take_order(const model_files::SafetensorsTensor* order);
  Result<void> look_at_zeros();

  void read_codes(uint64_t row, std::span<uint8_t> out) const;
  uint32_t group_of(uint64_t input) const;
  int32_t zero(uint64_t row, uint64_t group) const;
  float scale(uint64_t row, uint64_t group) const;
  bool by_columns() const { return codes_kind_ == Codes::kGptq || codes_kind_ == Codes::kAwq; }
  int32_t middle() const { return 1 << (bits_ - 1); }

  Codes codes_kind_ = Codes::kGptq;
  uint32_t bits_ = 0;
  uint64_t n_ = 0, k_ = 0;
  uint64_t group_ = 0, groups_ = 0;        // inputs that share a scale; how many scales a row has
  uint64_t scale_rows_ = 1;                // rows that share one
  bool zeros_less_one_ = false;            // as stored
  bool in_order_ = true, centred_ = true;  // groups lie one behind the other; every zero is the middle code
  const model_files::SafetensorsTensor *codes_ = nullptr, *scales_ = nullptr, *zeros_ = nullptr, *order_ = nullptr;
};

}  // namespace tie::model_import
