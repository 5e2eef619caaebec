// How the threads divide a batch: the columns of every matrix, or ("apart") its rows, each thread taking its own
// through the layers, so that what it reads it has written itself. Decided once for a pass, from shapes alone; it never
// changes a result.
#pragma once
#include <cstdint>

#include "inference/bones/model.h"

namespace tie::bones {

struct RowShares {
  bool apart = false;
  // With apart: the shares are of whole sequences with about as many keys each, so that a thread attends to its own as
  // well and meets the others only at the head. Else all share attention, with a barrier before and after it.
  bool whole = false;
  uint32_t rows = 0, tile_rows = 0, n_threads = 1;

  // The first row of thread `thread`; of n_threads: behind the last row.
  uint32_t first_row(uint32_t thread) const;
};

// `tile_rows_of(n)` is the tile that the kernels want for n rows, or null for rows_per_tile.
RowShares plan_rows(const ModelConfig& config, const Batch& batch, uint32_t n_threads,
                    uint32_t (*tile_rows_of)(uint32_t rows));

}  // namespace tie::bones
