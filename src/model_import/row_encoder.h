// Numbers of a safetensors row as floats, and floats as the rows of a model file. Pure. Source: the public safetensors
// and GGML block layouts.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"
#include "model_files/gguf.h"
#include "model_files/safetensors.h"

namespace tie::model_import {

// Fills `out` from elements [first, first + out.size()) of the tensor (F32, F16 or BF16).
void read_row(const model_files::SafetensorsTensor& tensor, uint64_t first, std::span<float> out);

// Appends the row as F32, F16, BF16 or Q8_0 (whole blocks of 32, scale = largest magnitude / 127). kCorrupt: a value
// that is no finite number, or too large for F16.
Result<void> append_row(model_files::TensorType type, std::span<const float> row, Bytes& out);

}  // namespace tie::model_import
