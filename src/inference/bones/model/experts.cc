#include "inference/bones/model/experts.h"

#include <algorithm>
#include <cmath>

#include "inference/bones/kernels/reference/tile_access.h"
#include "inference/bones/ops/linear.h"

namespace tie::bones {
namespace {

// Rows of activations for every (row, expert) pair, with room for each group's last tile.
uint32_t padded_slots(const ModelConfig& c, uint32_t max_rows) {
  const uint32_t slots = max_rows * c.n_experts_used;
  return slots + kMostTileRows * std::min(c.n_experts, slots);
}

}  // namespace

PackedMatrix expert_matrix(const PackedMatrix& stacked, uint32_t expert, uint32_t experts) {
  PackedMatrix one = stacked;
  one.n = stacked.n / experts;
  one.data = stacked.data + size_t{expert} * one.strips() * strip_bytes(stacked.packing, stacked.k);
  return one;
}

void ExpertSpace::lay_out(const ModelConfig& c, uint32_t max_rows) {
  const size_t pairs = size_t{max_rows} * c.n_experts_used;
  router_stride_ = (c.n_experts + kStrip - 1) / kStrip * kStrip;
  router_logits_ = arena_.take<float>(max_rows * router_stride_);
  chosen_ = arena_.take<uint32_t>(pairs);
  weight_ = arena_.take<float>(pairs);
  slot_ = arena_.take<uint32_t>(pairs);
  slot_row_ = arena_.take<uint32_t>(pairs);
  gathered_ = arena_.take<float>(pairs * c.n_embd);
  outputs_ = arena_.take<float>(pairs * c.n_embd);
  in_ = take_activations(arena_, padded_slots(c, max_rows), c.n_embd);
  ffn_ = take_activations(arena_, padded_slots(c, max_rows), c.n_ff);
}

bool ExpertSpace::allocate(const ModelConfig& c, uint32_t max_rows) {
  if (c.n_experts == 0) return true;
  n_embd_ = c.n_embd;
  lay_out(c, max_rows);
  if (!arena_.allocate()) return false;
  lay_out(c, max_rows);
  groups_.reserve(c.n_experts);
  next_slot_.resize(c.n_experts + 1);
  return true;
}

void ExpertSpace::route(const ModelConfig& c, uint32_t first, uint32_t last) {
  for (uint32_t row = first; row < last; ++row) {
    const float* logits = router_logits_ + row * router_stride_;
    uint32_t* chosen = chosen_ + size_t{row} * c.n_experts_used;
    float* weight = weight_ + size_t{row} * c.n_experts_used;
    // The likeliest, in order; of equals the one with the smaller number.
    uint32_t n = 0;
    for (uint32_t e = 0; e < c.n_experts; ++e) {
      uint32_t at = n;
      while (at > 0 && logits[e] > logits[chosen[at - 1]]) --at;
      if (at == c.n_experts_used) continue;
      n = std::min(n + 1, c.n_experts_used);
      for (uint32_t i = n - 1; i > at; --i) chosen[i] = chosen[i - 1];
      chosen[at] = e;
    }
    const float largest = logits[chosen[0]];
    float total = 0, of_chosen = 0;
    for (uint32_t e = 0; e < c.n_experts; ++e) total += std::exp(logits[e] - largest);
    for (uint32_t i = 0; i < c.n_experts_used; ++i)
      of_chosen += weight[i] = std::exp(logits[chosen[i]] - largest) / total;
    for (uint32_t i = 0; c.normalise_experts && i < c.n_experts_used; ++i) weight[i] /= of_chosen;
  }
}

void ExpertSpace::group(const KernelSet& kernels, const ModelConfig& c, uint32_t rows, bool want_codes, bool want_f32) {
  const uint32_t pairs = rows * c.n_experts_used;
  std::fill(next_slot_.begin(), next_slot_.end(), 0u);
  for (uint32_t i = 0; i < pairs; ++i) ++next_slot_[chosen_[i] + 1];
  groups_.clear();
  uint32_t tile_row = 0;
  for (uint32_t e = 0; e < c.n_experts; ++e) {
    const uint32_t n = next_slot_[e + 1];
    next_slot_[e + 1] += next_slot_[e];
    if (n == 0) continue;
    groups_.push_back({e, next_slot_[e], n, rows_from(in_, tile_row), rows_from(ffn_, tile_row)});
    for (Activations* acts : {&groups_.back().in, &groups_.back().ffn})
      shape_activations(kernels, *acts, n, want_codes, want_f32);
    tile_row += groups_.back().in.tiles() * groups_.back().in.rows_per_tile;
  }
  for (uint32_t i = 0; i < pairs; ++i) {
    slot_[i] = next_slot_[chosen_[i]]++;
    slot_row_[slot_[i]] = i / c.n_experts_used;
  }
}

void ExpertSpace::combine(const ModelConfig& c, uint32_t row, float* x) const {
  for (uint32_t j = 0; j < c.n_experts_used; ++j) {
    const size_t pair = size_t{row} * c.n_experts_used + j;
    const float* y = output(slot_[pair]);
    const float weight = weight_[pair];
    for (uint32_t i = 0; i < c.n_embd; ++i) x[i] += weight * y[i];
  }
}

}  // namespace tie::bones
