// The feed-forward of a mixture of experts: a router chooses some experts for each row, rows are grouped by expert,
// each group goes through its expert's matrices as one small batch, and a row's outputs are added in the order of its
// choice. A row's numbers depend on that row alone, so results do not depend on the batch. Used by the forward pass;
// every thread of the pool calls the same functions between the same barriers. Memory is allocated once. Source: the
// Mixtral and Qwen3-MoE model descriptions.
#pragma once
#include <cstdint>
#include <vector>

#include "inference/bones/kernels/kernel_set.h"
#include "inference/bones/model_config.h"
#include "inference/bones/ops/workspace.h"

namespace tie::bones {

// Matrices of all experts of a layer, stacked: expert e has rows [e * n, (e + 1) * n).
struct ExpertWeights {
  PackedMatrix router;  // n_experts outputs; n == 0: the layer has no experts
  PackedMatrix gate, up, down;
};

// The stacked matrix's part of one expert. `experts` divides its rows into whole strips.
PackedMatrix expert_matrix(const PackedMatrix& stacked, uint32_t expert, uint32_t experts);

class ExpertSpace {
 public:
  // False: no memory. Nothing is taken when the model has no experts.
  bool allocate(const ModelConfig& config, uint32_t max_rows);
  // As Workspace::set_scale_groups.
  void set_scale_groups(bool folded) { in_.group = ffn_.group = folded ? kScaleBlocks : 1; }

  float* router_logits() const { return router_logits_; }
  size_t router_stride() const { return router_stride_; }

  // Chooses the experts of rows [first, last) from their router logits.
  void route(const ModelConfig& config, uint32_t first, uint32_t last);
  // Groups the choices of `rows` rows by expert and shapes each group's activations. One thread.
  void group(const KernelSet& kernels, const ModelConfig& config, uint32_t rows, bool want_codes, bool want_f32);

  struct Group {
    uint32_t expert = 0, first_slot = 0, n_rows = 0;
    Activations in, ffn;
  };
  const std::vector<Group>& groups() const { return groups_; }
  std::vector<Group>& groups() { return groups_; }
  uint32_t row_of(uint32_t slot) const { return slot_row_[slot]; }
  float* gathered(uint32_t slot) const { return gathered_ + size_t{slot} * n_embd_; }
  float* output(uint32_t slot) const { return outputs_ + size_t{slot} * n_embd_; }

  // x += the weighted outputs of the row's experts.
  void combine(const ModelConfig& config, uint32_t row, float* x) const;

 private:
  void lay_out(const ModelConfig& config, uint32_t max_rows);

  Arena arena_;
  uint32_t n_embd_ = 0;
  size_t router_stride_ = 0;
  float* router_logits_ = nullptr;   // [rows][router_stride]
  uint32_t* chosen_ = nullptr;       // [rows][used]: expert, likeliest first
  float* weight_ = nullptr;          // [rows][used]
  uint32_t* slot_ = nullptr;         // [rows][used]: where the pair lies among all, grouped by expert
  uint32_t* slot_row_ = nullptr;     // [slots]
  float* gathered_ = nullptr;        // [slots][n_embd]: rows of the residual stream
  float* outputs_ = nullptr;         // [slots][n_embd]
  Activations in_, ffn_;             // of all groups, each on whole tiles
  std::vector<Group> groups_;        // those with rows; capacity reserved
  std::vector<uint32_t> next_slot_;  // [experts + 1]
};

}  // namespace tie::bones
