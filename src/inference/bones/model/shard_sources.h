// Cuts the tensors of a whole model down to what one rank holds: rows of q, k, v, gate, up (of each expert's, where
// there are any) and the vocabulary; inputs (columns) of the attention output and of down; layers of the rank's stage,
// renumbered from 0.
#pragma once
#include <vector>

#include "inference/bones/model/architecture.h"
#include "inference/bones/rank_place.h"

namespace tie::bones {

// `sources` are those of the whole model, described by `whole`. kUnsupportedFeature for a tensor that no rule cuts.
Result<std::vector<TensorSource>> shard_sources(std::vector<TensorSource> sources, const ModelConfig& whole,
                                                const Shard& shard);

}  // namespace tie::bones
