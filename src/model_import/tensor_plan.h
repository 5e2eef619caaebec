// Which tensors of a Hugging Face folder become which tensors of the model file. Pure over the folder's headers;
// nothing is read but shapes.
#pragma once
#include <string>
#include <vector>

#include "model_import/hf_config.h"
#include "model_import/hf_folder.h"
#include "model_import/quantised_matrix.h"

namespace tie::model_import {

// A tensor of the folder, or the several that make one quantised matrix.
struct SourceTensor {
  const model_files::SafetensorsTensor* plain = nullptr;
  std::optional<QuantisedMatrix> quantised;
};

struct PlannedTensor {
  std::string name;                 // in the file
  std::vector<uint64_t> dims;       // ggml order: dims[0] contiguous
  std::vector<SourceTensor> parts;  // one behind the other: the experts of a layer
  std::vector<float> values;        // instead of parts: numbers that config.json gave
  bool matrix = false;              // may be quantised; everything else stays float32
  bool add_one = false;             // Gemma stores its norms less one
  uint32_t interleaved_head =
      0;  // != 0: rows of each head of this many go from (i, i + rope_dim / 2) to pairs (2i, 2i + 1)
};

// kCorrupt: missing or misshapen; kUnsupportedFeature: a tensor that this architecture does not have, or an element
// type that is not F32, F16 or BF16 and belongs to no quantised matrix (quantised_matrix.h).
Result<std::vector<PlannedTensor>> plan_tensors(const HfFolder& folder, const HfConfig& config);

// Rows per head that the projections of the first layer imply, for configs without head_dim.
std::optional<uint32_t> implied_head_dim(const HfFolder& folder);

}  // namespace tie::model_import
