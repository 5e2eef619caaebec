// Weights of any size in GPU memory without a file: every byte the same small number, so that values are tame and speed
// is that of a real model of the size. For device_check alone.
#pragma once
#include "inference/bones/cuda/device_weights.h"

namespace tie::bones::cuda {

ModelConfig llama_config(uint32_t n_layers, uint32_t n_embd, uint32_t n_ff, uint32_t n_heads, uint32_t n_kv_heads,
                         uint32_t head_dim, uint32_t n_vocab);
Result<LoadedWeights> synthetic_weights(std::shared_ptr<Driver> driver, const ModelConfig& config, Format format);

}  // namespace tie::bones::cuda
