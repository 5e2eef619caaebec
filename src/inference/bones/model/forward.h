// The forward pass of a decoder-only transformer, as every thread of the pool runs it.
#pragma once
#include <memory>
#include <vector>

#include "inference/bones/kernels/kernel_set.h"
#include "inference/bones/model.h"
#include "inference/bones/ops/rope.h"
#include "inference/bones/ops/workspace.h"

namespace tie::bones {

struct LayerWeights {
  PackedMatrix q, k, v, o, gate, up, down;
  const float *attention_norm = nullptr, *ffn_norm = nullptr, *post_attention_norm = nullptr, *post_ffn_norm = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr, *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr;
};

struct Model::State {
  WeightsImage image;
  ModelConfig config;
  ModelOptions options;
  const KernelSet* kernels = nullptr;
  PackedMatrix embedding, output;
  const float* output_norm = nullptr;
  std::vector<LayerWeights> layers;
  RopeFrequencies rope[2];  // global, local
  Workspace ws;

  Result<void> check_batch(const Batch& batch, const KvPool& kv) const;
  void run(const Batch& batch, const KvPool& kv);
};

}  // namespace tie::bones
