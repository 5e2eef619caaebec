// Cuts a batch into parts of consecutive rows, which the stages of a pipeline compute one after another while other
// stages are at other parts. A sequence that is cut is computed like a prompt in chunks: the same bits. Views into the
// batch; nothing is allocated after reserve().
#pragma once
#include <cstdint>
#include <vector>

#include "inference/bones/model.h"

namespace tie::bones {

struct BatchPart {
  Batch batch;
  uint32_t first_row = 0, first_logit_row = 0;  // of the whole batch
};

// Rows [first, last) of a batch.
struct RowRange {
  uint32_t first = 0, last = 0;
};

RowRange rows_of_part(uint32_t rows, uint32_t index, uint32_t parts);

// What of a sequence lies in those rows, its rows counted from their first; n_rows 0: nothing.
SequenceSpan span_within(const SequenceSpan& span, RowRange rows);

class MicroBatches {
 public:
  void reserve(uint32_t max_sequences, uint32_t max_logit_rows, uint32_t max_rows);
  // Part `index` of `parts`; valid until the next call. parts <= rows of the batch.
  const BatchPart& part(const Batch& batch, uint32_t index, uint32_t parts);

 private:
  void cut_sequences(const Batch& batch, RowRange rows);

  BatchPart part_;
  std::vector<SequenceSpan> sequences_;
  std::vector<uint32_t> logit_rows_;
  std::vector<EmbeddingRow> embeddings_;
};

}  // namespace tie::bones
