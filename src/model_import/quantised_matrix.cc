#include "model_import/quantised_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/half_float.h"
#include "model_import/row_encoder.h"

namespace tie::model_import {
namespace {

using model_files::SafetensorsTensor;
using model_files::SafetensorsType;
using model_files::TensorType;
using Shape = std::vector<uint64_t>;

constexpr uint64_t kBlock = 32;
constexpr uint32_t kAwqNibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // of column 8c + i, in word c

uint32_t word_at(const SafetensorsTensor& tensor, uint64_t i) {
  uint32_t word;
  std::memcpy(&word, tensor.data.data() + 4 * i, 4);
  return word;
}

bool holds_numbers(const SafetensorsTensor& tensor) {
  return tensor.type == SafetensorsType::kF32 || tensor.type == SafetensorsType::kF16 ||
         tensor.type == SafetensorsType::kBF16;
}

std::unexpected<Error> misshapen(const SafetensorsTensor& tensor) {
  return fail(Code::kCorrupt, "tensor " + tensor.name + " does not have the type or shape that its matrix demands");
}

void append_half(Bytes& out, float f) {
  const uint32_t bits = float_to_half(f);
  out.push_back(static_cast<uint8_t>(bits));
  out.push_back(static_cast<uint8_t>(bits >> 8));
}

bool fits_half(float f) {
  return std::fabs(f) <= 65504.0f;  // no NaN does
}

}  // namespace

const SafetensorsTensor* QuantisedMatrix::Names::operator()(const char* name) const {
  const std::string full = stem + name;
  const SafetensorsTensor* tensor = find(full);
  if (tensor) used.insert(full);
  return tensor;
}

Result<std::optional<QuantisedMatrix>> QuantisedMatrix::find(const Find& find, const QuantScheme& scheme,
                                                             const std::string& stem, uint64_t n, uint64_t k,
                                                             std::set<std::string>& used) {
  const Names names{find, stem, used};
  QuantisedMatrix out;
  out.n_ = n, out.k_ = k;
  using Method = QuantScheme::Method;
  if (scheme.method == Method::kNone) return std::nullopt;
  if (scheme.method == Method::kGptq || scheme.method == Method::kAwq) {
    if (!find(stem + "qweight")) return std::nullopt;
    TIE_CHECK_OK(out.take_columns(names, scheme));
  } else {
    const SafetensorsTensor* weight = find(stem + "weight");
    if (!find(stem + "weight_packed") && (!weight || holds_numbers(*weight))) return std::nullopt;
    TIE_CHECK_OK(out.take_rows(names, scheme));
  }
  TIE_CHECK_OK(out.look_at_zeros());
  return out;
}

// Words hold codes of one output and 8 or 4 inputs (GPTQ), or of one input and 8 outputs (AWQ); scales and zeros stand
// in rows, one for each group of inputs.
Result<void> QuantisedMatrix::take_columns(const Names& names, const QuantScheme& scheme) {
  codes_kind_ = scheme.method == QuantScheme::Method::kGptq ? Codes::kGptq : Codes::kAwq;
  zeros_less_one_ = scheme.zeros_less_one;
  codes_ = names("qweight"), scales_ = names("scales"), zeros_ = names("qzeros");
  if (!scales_ || !zeros_) return fail(Code::kCorrupt, "tensor " + codes_->name + " has no scales or no qzeros");
  if (codes_->type != SafetensorsType::kI32 || codes_->shape.size() != 2) return misshapen(*codes_);
  for (uint32_t bits : {4, 8}) {
    const Shape gptq{k_ * bits / 32, n_}, awq{k_, n_ * bits / 32};
    if (codes_->shape == (codes_kind_ == Codes::kGptq ? gptq : awq) && (bits == 4 || codes_kind_ == Codes::kGptq))
      bits_ = bits;
  }
  const uint64_t per_word = bits_ == 0 ? 1 : 32 / bits_;
  if (bits_ == 0 || k_ % per_word != 0 || n_ % per_word != 0) return misshapen(*codes_);
  if (!holds_numbers(*scales_) || scales_->shape.size() != 2 || scales_->shape[1] != n_) return misshapen(*scales_);
  groups_ = scales_->shape[0];
  if (groups_ == 0 || k_ % groups_ != 0) return misshapen(*scales_);
  group_ = k_ / groups_;
  if (zeros_->type != SafetensorsType::kI32 || zeros_->shape != Shape{groups_, n_ / per_word})
    return misshapen(*zeros_);
  return take_order(codes_kind_ == Codes::kGptq ? names("g_idx") : nullptr);
}

// Codes of a row lie one behind the other, packed in words or a byte each; so do a row's scales.
Result<void> QuantisedMatrix::take_rows(const Names& names, const QuantScheme& scheme) {
  if ((codes_ = names("weight_packed"))) {
    codes_kind_ = Codes::kPackedRows;
    for (uint32_t bits : {4, 8})
      if (codes_->type == SafetensorsType::kI32 && k_ % (32 / bits) == 0 && codes_->shape == Shape{n_, k_ * bits / 32})
        bits_ = bits;
  } else {
    codes_ = names("weight");
    const bool integers = codes_->type == SafetensorsType::kI8;
    codes_kind_ = integers ? Codes::kInt8 : Codes::kFloat8;
    if ((integers || codes_->type == SafetensorsType::kF8E4M3) && codes_->shape == Shape{n_, k_}) bits_ = 8;
  }
  if (bits_ == 0) return misshapen(*codes_);
  (void)names("weight_shape");  // n and k are known
  for (const char* activations : {"input_scale", "input_zero_point", "input_global_scale"}) (void)names(activations);
  scales_ = names("weight_scale");
  if (!scales_) scales_ = names("weight_scale_inv");
  if (!scales_) return fail(Code::kCorrupt, "tensor " + codes_->name + " has no weight_scale");
  TIE_CHECK_OK(take_row_scales(scheme));
  zeros_ = names("weight_zero_point");
  if (zeros_ && codes_kind_ == Codes::kFloat8) return misshapen(*zeros_);
  if (zeros_ && codes_kind_ == Codes::kInt8 &&
      (zeros_->type != SafetensorsType::kI8 || zeros_->shape != scales_->shape || scale_rows_ != 1))
    return misshapen(*zeros_);
  if (zeros_ && codes_kind_ == Codes::kPackedRows) {
    const uint64_t per_word = 32 / bits_;
    if (zeros_->type != SafetensorsType::kI32 || zeros_->shape != Shape{(n_ + per_word - 1) / per_word, groups_})
      return misshapen(*zeros_);
  }
  return take_order(names("weight_g_idx"));
}

// One for all, for each row, for each row's groups, or for blocks of the announced size.
Result<void> QuantisedMatrix::take_row_scales(const QuantScheme& scheme) {
  if (!holds_numbers(*scales_) || scales_->shape.size() > 2) return misshapen(*scales_);
  const uint64_t rows = scales_->shape.empty() ? 1 : scales_->shape[0];
  groups_ = scales_->shape.size() == 2 ? scales_->shape[1] : 1;
  if (scheme.block_rows != 0 && scales_->shape.size() == 2) {
    scale_rows_ = scheme.block_rows, group_ = scheme.block_inputs;
    if (rows != (n_ + scale_rows_ - 1) / scale_rows_ || groups_ != (k_ + group_ - 1) / group_)
      return misshapen(*scales_);
    return {};
  }
  if (groups_ == 0 || k_ % groups_ != 0 || (rows != n_ && (rows != 1 || groups_ != 1))) return misshapen(*scales_);
  group_ = k_ / groups_;
  scale_rows_ = rows == n_ ? 1 : n_;
  return {};
}

Result<void> QuantisedMatrix::take_order(const SafetensorsTensor* order) {
  if (!order) return {};
  if (order->type != SafetensorsType::kI32 || order->shape != Shape{k_}) return misshapen(*order);
  for (uint64_t i = 0; i < k_; ++i) {
    const uint32_t group = word_at(*order, i);
    if (group >= groups_) return fail(Code::kCorrupt, "tensor " + order->name + " names a group that does not exist");
    if (group != i / group_) in_order_ = false;
  }
  if (!in_order_) order_ = order;
  return {};
}

Result<void> QuantisedMatrix::look_at_zeros() {
  if (!zeros_ || codes_kind_ == Codes::kFloat8) return {};
  for (uint64_t row = 0; row < n_ && centred_; ++row)
    for (uint64_t g = 0; g < groups_ && centred_; ++g) centred_ = zero(row, g) == middle();
  return {};
}

uint32_t QuantisedMatrix::group_of(uint64_t input) const {
  return order_ ? word_at(*order_, input) : static_cast<uint32_t>(input / group_);
}

float QuantisedMatrix::scale(uint64_t row, uint64_t group) const {
  float out;
  model_import::read_row(*scales_, by_columns() ? group * n_ + row : row / scale_rows_ * groups_ + group, {&out, 1});
  return out;
}

int32_t QuantisedMatrix::zero(uint64_t row, uint64_t group) const {
  if (!zeros_) return middle();
  if (codes_kind_ == Codes::kInt8) return 128 + static_cast<int8_t>(zeros_->data[row * groups_ + group]);
  const uint64_t per_word = 32 / bits_, mask = (1u << bits_) - 1;
  const uint64_t at = by_columns() ? group * (n_ / per_word) + row / per_word : row / per_word * groups_ + group;
  const uint64_t place = codes_kind_ == Codes::kAwq ? kAwqNibble[row % 8] : row % per_word;
  const uint64_t stored = word_at(*zeros_, at) >> (bits_ * place);
  return static_cast<int32_t>((stored + (zeros_less_one_ ? 1 : 0)) & mask);
}

void QuantisedMatrix::read_codes(uint64_t row, std::span<uint8_t> out) const {
  const uint64_t per_word = 32 / bits_;
  const auto mask = static_cast<uint8_t>((1u << bits_) - 1);
  switch (codes_kind_) {
    case Codes::kGptq:
    case Codes::kPackedRows:
      for (uint64_t w = 0; w < k_ / per_word; ++w) {
        const uint32_t word = word_at(*codes_, by_columns() ? w * n_ + row : row * (k_ / per_word) + w);
        for (uint64_t i = 0; i < per_word; ++i)
          out[w * per_word + i] = static_cast<uint8_t>(word >> (bits_ * i)) & mask;
      }
      return;
    case Codes::kAwq:
      for (uint64_t i = 0; i < k_; ++i)
        out[i] = static_cast<uint8_t>(word_at(*codes_, i * (n_ / 8) + row / 8) >> (4 * kAwqNibble[row % 8])) & mask;
      return;
    case Codes::kInt8:
    case Codes::kFloat8:
      std::memcpy(out.data(), codes_->data.data() + row * k_, k_);
      if (codes_kind_ == Codes::kInt8)
        for (uint8_t& code : out) code ^= 0x80;
      return;
  }
}

std::optional<TensorType> QuantisedMatrix::block_type() const {
  if (codes_kind_ == Codes::kFloat8 || !in_order_ || group_ % kBlock != 0 || k_ % kBlock != 0) return std::nullopt;
  if (bits_ == 4) return centred_ ? TensorType::kQ4_0 : TensorType::kQ4_1;
  return centred_ ? std::optional(TensorType::kQ8_0) : std::nullopt;
}

void QuantisedMatrix::read_row(uint64_t row, std::span<float> out) const {
  std::vector<uint8_t> codes(k_);
  read_codes(row, codes);
  std::vector<float> scales(groups_);
  std::vector<int32_t> zeros(groups_, 0);
  for (uint64_t g = 0; g < groups_; ++g) {
    scales[g] = scale(row, g);
    if (codes_kind_ != Codes::kFloat8) zeros[g] = zero(row, g);
  }
  for (uint64_t i = 0; i < k_; ++i) {
    const uint32_t g = group_of(i);
    const float code =
        codes_kind_ == Codes::kFloat8 ? e4m3_to_float(codes[i]) : static_cast<float>(codes[i] - zeros[g]);
    out[i] = scales[g] * code;
  }
}

Result<void> QuantisedMatrix::append_blocks(uint64_t row, TensorType type, Bytes& out) const {
  std::vector<uint8_t> codes(k_);
  read_codes(row, codes);
  for (uint64_t first = 0; first < k_; first += kBlock) {
    const uint64_t group = first / group_;
    const float d = scale(row, group), minimum = -d * static_cast<float>(zero(row, group));
    if (!fits_half(d) || (type == TensorType::kQ4_1 && !fits_half(minimum)))
      return fail(Code::kCorrupt, "it has a scale that is not a finite number of a usable size");
    append_half(out, d);
    const uint8_t* block = codes.data() + first;
    if (type == TensorType::kQ8_0) {
      for (uint64_t i = 0; i < kBlock; ++i) out.push_back(block[i] ^ 0x80);
      continue;
    }
    if (type == TensorType::kQ4_1) append_half(out, minimum);
    for (uint64_t i = 0; i < kBlock / 2; ++i)
      out.push_back(static_cast<uint8_t>(block[i] | block[i + kBlock / 2] << 4));
  }
  return {};
}

}  // namespace tie::model_import
