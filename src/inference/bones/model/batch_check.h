// The checks between a caller's batch and the kernels, which check nothing: every index, length and position.
#pragma once
#include "inference/bones/model.h"

namespace tie::bones {

struct BatchLimits {
  uint32_t max_rows = 0, max_logit_rows = 0, max_sequences = 0;
};

// kBadRequest (shape of the batch, token id, block number, table too short), kContextExceeded.
Result<void> check_batch(const ModelConfig& whole, const BatchLimits& limits, const Batch& batch, const KvPool& kv);

}  // namespace tie::bones
