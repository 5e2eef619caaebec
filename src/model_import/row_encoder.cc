#include "model_import/row_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/half_float.h"

namespace tie::model_import {
namespace {

using model_files::SafetensorsType;
using model_files::TensorType;

constexpr size_t kBlock = 32;
constexpr float kMaxHalf = 65504.0f;

void append_u16(Bytes& out, uint32_t value) {
  out.push_back(static_cast<uint8_t>(value));
  out.push_back(static_cast<uint8_t>(value >> 8));
}

void append_q8_block(std::span<const float> block, Bytes& out) {
  float largest = 0;
  for (float f : block) largest = std::max(largest, std::fabs(f));
  const float scale = largest / 127.0f, inverse = scale > 0 ? 1.0f / scale : 0.0f;
  append_u16(out, float_to_half(scale));
  for (float f : block) {
    const float code = std::clamp(std::round(f * inverse), -127.0f, 127.0f);
    out.push_back(static_cast<uint8_t>(static_cast<int8_t>(code)));
  }
}

}  // namespace

void read_row(const model_files::SafetensorsTensor& tensor, uint64_t first, std::span<float> out) {
  const uint8_t* at = tensor.data.data() + first * model_files::safetensors_element_bytes(tensor.type);
  if (tensor.type == SafetensorsType::kF32) {
    std::memcpy(out.data(), at, out.size() * sizeof(float));
    return;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const uint32_t bits = at[2 * i] | uint32_t{at[2 * i + 1]} << 8;
    out[i] = tensor.type == SafetensorsType::kF16 ? half_to_float(bits) : bf16_to_float(bits);
  }
}

Result<void> append_row(TensorType type, std::span<const float> row, Bytes& out) {
  const float limit = type == TensorType::kF16 || type == TensorType::kQ8_0 ? kMaxHalf : INFINITY;
  for (float f : row)
    if (!std::isfinite(f) || std::fabs(f) > limit)
      return fail(Code::kCorrupt, "it holds a value that is not a finite number of a usable size");
  if (type == TensorType::kQ8_0) {
    for (size_t i = 0; i < row.size(); i += kBlock) append_q8_block(row.subspan(i, kBlock), out);
    return {};
  }
  if (type == TensorType::kF32) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(row.data());
    out.insert(out.end(), bytes, bytes + row.size_bytes());
    return {};
  }
  for (float f : row) append_u16(out, type == TensorType::kF16 ? float_to_half(f) : float_to_bf16(f));
  return {};
}

}  // namespace tie::model_import
