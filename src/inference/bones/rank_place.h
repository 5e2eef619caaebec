// One model over several ranks: where a rank stands, and which part of the model it holds. A grid of stages (pipeline,
// consecutive layers) by tensor ranks (every layer's heads, feed-forward columns and the vocabulary cut). Plain data
// and pure functions; used by packing (each rank has an image of its own), by Model and by the communicator.
// Rules: kv heads are divided when there are at least as many as tensor ranks, else each is replicated on
// tensor_ranks / n_kv_heads ranks that divide its query heads; feed-forward columns (each expert's, in a mixture) are
// cut at multiples of 128 (32 when there are too few) and the vocabulary at multiples of 16, so that no quantisation
// block, no group of activations with one scale and no strip is cut.
#pragma once
#include <cstdint>

#include "base/result.h"
#include "inference/bones/model_config.h"

namespace tie::bones {

inline constexpr uint32_t kMaxRanks = 64;

struct RankPlace {
  uint32_t tensor_rank = 0, tensor_ranks = 1;
  uint32_t stage = 0, stages = 1;

  bool alone() const { return tensor_ranks == 1 && stages == 1; }
  uint32_t count() const { return tensor_ranks * stages; }
  uint32_t index() const { return stage * tensor_ranks + tensor_rank; }
  // The place of rank `index` in this grid.
  RankPlace at(uint32_t index) const { return {index % tensor_ranks, tensor_ranks, index / tensor_ranks, stages}; }
  bool operator==(const RankPlace&) const = default;
};

// Half-open ranges of the whole model.
struct Shard {
  uint32_t first_layer = 0, n_layers = 0;
  uint32_t first_head = 0, n_heads = 0;
  uint32_t first_kv_head = 0, n_kv_heads = 0;
  uint32_t first_ff = 0, n_ff = 0;
  uint32_t first_vocab = 0, n_vocab = 0;
  bool first_stage = true, last_stage = true;

  bool holds_embedding(const ModelConfig& whole) const { return first_stage || (last_stage && whole.tied_embeddings); }
};

// kUnsupportedFeature, saying which size does not divide, when the model cannot be cut that way; kBadRequest for a
// place outside its grid.
Result<Shard> shard_of(const ModelConfig& whole, RankPlace place);

// The model that a rank sees: `whole` with the shard's numbers of layers, heads, columns and vocabulary rows.
ModelConfig shard_config(const ModelConfig& whole, const Shard& shard);

}  // namespace tie::bones
