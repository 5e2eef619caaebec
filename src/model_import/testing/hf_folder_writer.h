// Writes model folders in the Hugging Face layout for tests, with weights that are a pure function of a tensor's name:
// the same ones as tests/data/model_reference/make_reference.py draws, to the bit.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace tie::model_import::testing {

using Shapes = std::map<std::string, std::vector<uint64_t>>;

// Multiples of 2^-23 in [-1, 1) times a power of two; norms lie around 1, or around 0 for Gemma.
std::vector<float> reference_weights(const std::string& name, const std::vector<uint64_t>& shape, bool gemma);

// What a checkpoint's numbers are rounded to; its name is the file's word for it.
enum class Precision { kF32, kF16, kBf16 };

// One safetensors file, its tensors in the order of their names.
Bytes safetensors_file(const Shapes& shapes, bool gemma, Precision precision = Precision::kF32);

// config.json and the weights, in `shards` files (1: model.safetensors without an index).
void write_folder(const std::string& folder, const nlohmann::json& config, const Shapes& shapes, uint32_t shards = 1,
                  Precision precision = Precision::kF32);

void write_text(const std::string& path, std::string_view text);

}  // namespace tie::model_import::testing
