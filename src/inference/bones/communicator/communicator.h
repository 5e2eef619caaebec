// What one forward pass asks of the other ranks of its model. Implemented over shared memory (shared_memory_ranks.h);
// a model that is alone has none. Threads: every compute thread of every rank of a stage makes the same calls in the
// same order. A false answer means that a peer is lost: the caller leaves the pass at once, and every later
// call answers the same.
#pragma once
#include <cstddef>
#include <cstdint>

#include "inference/bones/kernels/tile.h"
#include "inference/bones/ops/best_ids.h"
#include "inference/bones/rank_place.h"

namespace tie::bones {

// Who takes a row of a sum: each rank all rows, or one rank each row.
enum class Takers { kEveryRank, kOneRank };

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual RankPlace place() const = 0;

  // Where this rank's threads write their addend [rows][width] of the next sum; 64-byte aligned.
  virtual float* partial(uint32_t thread) = 0;
  // Meets the stage's ranks. Call when this thread's writes to partial() are done.
  virtual bool sum(uint32_t thread, uint32_t rows, uint32_t width, Takers takers) = 0;
  // Then, until this thread's next sum(): one row of the sum of the ranks' addends, added up in rank order; `to`
  // becomes it, or grows by it. Any row, each once in its rank, or, as sum() was told, once in all ranks.
  virtual void take_sum(uint32_t thread, uint32_t row, float* to, bool add) = 0;

  // Quantised rows [max_batch_rows][n_embd] that the ranks of a stage share: one writes a tile, all read it after
  // meet(). Whoever writes anew has met the readers since. The shape of the batch is the caller's to set.
  virtual Activations shared_rows() = 0;
  // Meets the stage's ranks.
  virtual bool meet() = 0;

  // Hands `rows` rows of the batch, from `first_row`, to the next stage; `x` is the first of them. The threads of the
  // stage's ranks hand on all rows of the part together, and each must be done with what it gives.
  virtual bool send_rows(uint32_t thread, const float* x, uint32_t first_row, uint32_t rows, uint32_t width) = 0;
  // Waits for the rows of part `part` from the stage before; copies this thread's share to x. One thread of the rank
  // waits, the caller's barrier stands between wait_rows and copy_rows.
  virtual bool wait_rows(uint32_t part) = 0;
  virtual void copy_rows(uint32_t thread, float* x, uint32_t first_row, uint32_t rows, uint32_t width) = 0;

  // Logits of the whole vocabulary, shared by all ranks: [max_logit_rows][logits_stride()].
  virtual float* logits() = 0;
  virtual size_t logits_stride() const = 0;
  // What every compute thread of the stage's ranks found best; list tensor_rank * threads + thread is a thread's own.
  virtual BestTable best() = 0;
};

}  // namespace tie::bones
