// What each supported family is made of, and which tensors of a GGUF file it needs. Adding a family is a row in
// architecture.cc.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"
#include "inference/bones/model_config.h"
#include "inference/bones/weights_image.h"
#include "model_files/gguf.h"

namespace tie::bones {

// One packed tensor and where its numbers come from.
struct TensorSource {
  Role role{};
  uint32_t layer = 0;
  const model_files::GgufTensor* tensor = nullptr;
  uint32_t n = 0, k = 0;          // packed shape; a vector has k == 1
  uint32_t first_row = 0;         // rows [first_row, first_row + n) of the file's matrix (fused tensors are cut)
  uint32_t interleaved_head = 0;  // != 0: rows of each head of this many rows go from interleaved rotary pairs (2i,
                                  // 2i+1) to (i, i + rope_dim / 2)
  uint32_t first_k = 0,
           file_k = 0;  // a rank's share of the inputs: [first_k, first_k + k) of the file's file_k; 0 = all
  uint32_t part_rows = 0,
           file_part_rows = 0;  // a rank's share of every expert's rows: part_rows from first_row on of each
                                // file_part_rows; 0 = all
};

Result<ModelConfig> config_from_gguf(const model_files::Gguf& file);

// Every tensor the model needs, in the order of the image. Also sets the flags of `config` that follow from which
// tensors exist (ties, biases). kCorrupt: missing or misshapen; kUnsupportedFeature: an element type or a tensor that
// this architecture does not have.
Result<std::vector<TensorSource>> tensors_from_gguf(const model_files::Gguf& file, ModelConfig& config);

}  // namespace tie::bones
