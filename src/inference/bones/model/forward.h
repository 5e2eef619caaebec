// The forward pass of a decoder-only transformer, as every thread of the pool runs it.
#pragma once
#include <memory>
#include <vector>

#include "inference/bones/communicator/communicator.h"
#include "inference/bones/kernels/kernel_set.h"
#include "inference/bones/model.h"
#include "inference/bones/model/experts.h"
#include "inference/bones/model/micro_batch.h"
#include "inference/bones/ops/rope.h"
#include "inference/bones/ops/workspace.h"

namespace tie::bones {

struct LayerWeights {
  PackedMatrix q, k, v, o, gate, up, down;
  ExpertWeights experts;
  const float *attention_norm = nullptr, *ffn_norm = nullptr, *post_attention_norm = nullptr, *post_ffn_norm = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr, *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr;
};

struct Model::State {
  WeightsImage image;
  ModelConfig config;  // what this rank computes; image.config() is the whole model's
  Shard shard;
  ModelOptions options;
  const KernelSet* kernels = nullptr;
  PackedMatrix embedding, output;
  const float* output_norm = nullptr;
  std::vector<LayerWeights> layers;
  RopeFrequencies rope[2];  // global, local
  Workspace ws;
  ExpertSpace experts;
  bool want_codes = false, want_f32 = false;  // what the layers' matrices take as inputs
  MicroBatches parts;
  float* logits = nullptr;  // of the whole vocabulary
  size_t logits_stride = 0;
  BestTable best;
  bool rows_are_here = false;  // what wait_rows said, for every thread of this rank

  Result<void> check_batch(const Batch& batch, const KvPool& kv) const;
  // False: a rank is lost.
  bool run(const Batch& batch, const KvPool& kv);

  struct PartPlace {
    uint32_t index = 0, first_row = 0, first_logit_row = 0;
  };
  // One part of the batch, all of it when the model has one stage.
  bool run_part(const Batch& batch, const KvPool& kv, PartPlace place);
};

}  // namespace tie::bones
