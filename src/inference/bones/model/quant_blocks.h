// Reads one block of 32 weights of any supported GGUF quantisation as codes with scale and minimum. Source: the public
// GGML block layouts.
#pragma once
#include <cstdint>

#include "model_files/gguf.h"

namespace tie::bones {

// w[i] = scale[i / 16] * (code[i] - offset) + minimum, offset as the packing prescribes (32 for Q6, 128 for Q8, else
// 0).
struct QuantBlock {
  uint8_t code[32];
  float scale[2];
  float minimum;
};

// `row`: start of the matrix row in the file; `b`: block of 32 within the row.
QuantBlock read_block(model_files::TensorType type, const uint8_t* row, uint32_t b);

// One element of an unquantised row as float.
float read_float(model_files::TensorType type, const uint8_t* row, uint32_t i);

}  // namespace tie::bones
