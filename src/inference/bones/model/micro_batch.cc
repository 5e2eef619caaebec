#include "inference/bones/model/micro_batch.h"

#include <algorithm>

namespace tie::bones {

RowRange rows_of_part(uint32_t rows, uint32_t index, uint32_t parts) {
  return {static_cast<uint32_t>(uint64_t{rows} * index / parts),
          static_cast<uint32_t>(uint64_t{rows} * (index + 1) / parts)};
}

SequenceSpan span_within(const SequenceSpan& span, RowRange rows) {
  const uint32_t from = std::max(rows.first, span.first_row), to = std::min(rows.last, span.first_row + span.n_rows);
  if (from >= to) return {};
  return {from - rows.first, to - from, span.first_position + from - span.first_row, span.block_table};
}

void MicroBatches::reserve(uint32_t max_sequences, uint32_t max_logit_rows, uint32_t max_rows) {
  sequences_.reserve(max_sequences);
  logit_rows_.reserve(max_logit_rows);
  embeddings_.reserve(max_rows);
}

void MicroBatches::cut_sequences(const Batch& batch, RowRange rows) {
  sequences_.clear();
  for (const SequenceSpan& span : batch.sequences)
    if (const SequenceSpan part = span_within(span, rows); part.n_rows > 0) sequences_.push_back(part);
}

const BatchPart& MicroBatches::part(const Batch& batch, uint32_t index, uint32_t parts) {
  const auto [first, last] = rows_of_part(static_cast<uint32_t>(batch.tokens.size()), index, parts);
  cut_sequences(batch, {first, last});
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
