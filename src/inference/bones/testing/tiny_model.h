// Writes small GGUF models with random weights, for tests of bones, the engine, the model owner and whole nodes. Same
// options, same bytes. The vocabulary is byte-level: ids 0-255 are the bytes, then a few merges, then <|endoftext|>,
// <|im_start|> (BOS) and <|im_end|> (EOS), then padding tokens.
#pragma once
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "model_files/gguf.h"

namespace tie::bones::testing {

struct TinyModelOptions {
  std::string architecture = "llama";  // llama, qwen2, qwen3, qwen3moe, gemma2, gemma3, phi3
  uint32_t n_layers = 2;
  uint32_t n_embd = 64;
  uint32_t n_ff = 96;
  uint32_t n_experts = 5;  // qwen3moe only; n_ff is one expert's width
  uint32_t n_experts_used = 2;
  uint32_t n_heads = 4;
  uint32_t n_kv_heads = 2;
  uint32_t head_dim = 16;
  uint32_t n_vocab = 320;  // at least 300
  uint32_t context_length = 512;
  uint32_t sliding_window = 24;  // Gemma only
  model_files::TensorType weights =
      model_files::TensorType::kQ4_0;  // K quantisations need every width to be a multiple of 256
  model_files::TensorType embedding = model_files::TensorType::kQ8_0;
  bool tied = true;
  bool yarn = false;  // rope scaling of factor 4
  uint64_t seed = 1;
};

Bytes tiny_model(const TinyModelOptions& options);

}  // namespace tie::bones::testing
