#include "inference/bones/model/micro_batch.h"

#include <algorithm>

namespace tie::bones {

void MicroBatches::reserve(uint32_t max_sequences, uint32_t max_logit_rows, uint32_t max_rows) {
  sequences_.reserve(max_sequences);
  logit_rows_.reserve(max_logit_rows);
  embeddings_.reserve(max_rows);
}

void MicroBatches::cut_sequences(const Batch& batch, uint32_t first, uint32_t last) {
  sequences_.clear();
  for (const SequenceSpan& span : batch.sequences) {
    const uint32_t from = std::max(first, span.first_row), to = std::min(last, span.first_row + span.n_rows);
    if (from < to)
      sequences_.push_back({from - first, to - from, span.first_position + from - span.first_row, span.block_table});
  }
}

const BatchPart& MicroBatches::part(const Batch& batch, uint32_t index, uint32_t parts) {
  const auto rows = static_cast<uint32_t>(batch.tokens.size());
  const auto first = static_cast<uint32_t>(uint64_t{rows} * index / parts),
             last = static_cast<uint32_t>(uint64_t{rows} * (index + 1) / parts);
  cut_sequences(batch, first, last);
  part_.first_row = first;
  logit_rows_.clear();
  const auto begin = std::lower_bound(batch.logit_rows.begin(), batch.logit_rows.end(), first);
  part_.first_logit_row = static_cast<uint32_t>(begin - batch.logit_rows.begin());
  for (auto row = begin; row != batch.logit_rows.end() && *row < last; ++row) logit_rows_.push_back(*row - first);
  embeddings_.clear();
  for (const EmbeddingRow& given : batch.embeddings)
    if (given.row >= first && given.row < last) embeddings_.push_back({given.row - first, given.values});
  part_.batch = {batch.tokens.subspan(first, last - first), sequences_, logit_rows_, embeddings_};
  if (!batch.best.empty()) part_.batch.best = batch.best.subspan(part_.first_logit_row, logit_rows_.size());
  return part_;
}

}  // namespace tie::bones
