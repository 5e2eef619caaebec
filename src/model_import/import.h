// Turns a Hugging Face folder into one GGUF file without a vocabulary (the tokenizer's image is compiled from
// tokenizer.json by text). Called by `tie model add DIR`. One thread, streams: memory is one tensor's rows at a time.
// Limits and what is refused: hf_folder.h, hf_config.h, tensor_plan.h.
#pragma once
#include <cstdint>
#include <string>

#include "base/result.h"

namespace tie::model_import {

// How matrices are stored; vectors and routers stay float32.
enum class WeightFormat {
  kQ8_0,  // 8 bits and a scale for 32 weights: what the integer kernels run fastest
  kKeep,  // as the checkpoint has them (F32, F16, BF16): exact, by the float kernels
};

struct Imported {
  std::string architecture;  // of the file
  uint32_t context_tokens = 0, n_vocab = 0;
  uint64_t bytes = 0;
};

bool is_hf_folder(const std::string& path);

// Writes `out_path` (which must not exist) or, on an error, leaves nothing behind.
Result<Imported> import_folder(const std::string& folder, const std::string& out_path, WeightFormat format);

}  // namespace tie::model_import
