#include "inference/bones/communicator/published_step.h"

#include <algorithm>

namespace tie::bones {

Result<void> publish_step(RankSegment& s, const Batch& batch, const KvPool& kv, uint64_t kv_offset) {
  uint32_t entries = 0;
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const SequenceSpan& span = batch.sequences[i];
    const uint32_t n = kv.layout.blocks_for(span.first_position + span.n_rows);
    if (n > s.limits().max_table_entries - entries)
      return fail(Code::kTooLarge, "the step's block tables exceed the segment of the ranks");
    std::copy_n(span.block_table.data(), n, s.table() + entries);
    s.spans()[i] = {span.first_row, span.n_rows, span.first_position, entries, n};
    entries += n;
  }
  std::copy(batch.tokens.begin(), batch.tokens.end(), s.tokens());
  std::copy(batch.logit_rows.begin(), batch.logit_rows.end(), s.logit_rows());
  for (size_t i = 0; i < batch.embeddings.size(); ++i) {
    s.embedding_rows()[i] = batch.embeddings[i].row;
    std::copy_n(batch.embeddings[i].values, s.limits().n_embd, s.embeddings() + i * s.limits().n_embd);
  }
  for (uint32_t i = 0; i < batch.best.size(); ++i) {
    const BestOf& want = batch.best[i];
    s.wanted()[i] = {want.k, want.below, want.mask != nullptr};
    if (want.mask) std::copy_n(want.mask, want.mask_words(s.limits().n_vocab), s.mask(i));
  }
  s.header().step = {static_cast<uint32_t>(batch.tokens.size()),
                     static_cast<uint32_t>(batch.sequences.size()),
                     static_cast<uint32_t>(batch.logit_rows.size()),
                     static_cast<uint32_t>(batch.embeddings.size()),
                     static_cast<uint32_t>(batch.best.size()),
                     kv.layout.type,
                     kv.layout.block_tokens,
                     kv.n_blocks,
                     kv_offset};
  for (uint32_t stage = 0; stage < s.limits().grid.stages; ++stage)
    s.header().progress[stage].parts.store(0, std::memory_order_relaxed);
  return {};
}

Result<void> PublishedStep::read(RankSegment& segment, const ModelConfig& whole) {
  const StepRecord step = segment.header().step;
  const RankLimits& l = segment.limits();
  if (step.n_tokens > l.max_batch_rows || step.n_sequences > l.max_sequences || step.n_logit_rows > l.max_logit_rows ||
      step.n_embeddings > l.max_batch_rows || step.n_best > l.max_logit_rows)
    return fail(Code::kCorrupt, "the published step exceeds the segment's limits");
  sequences_.clear();
  for (uint32_t i = 0; i < step.n_sequences; ++i) {
    const StoredSpan span = segment.spans()[i];
    if (span.first_entry > l.max_table_entries || span.n_entries > l.max_table_entries - span.first_entry)
      return fail(Code::kCorrupt, "the published step exceeds the segment's limits");
    sequences_.push_back(
        {span.first_row, span.n_rows, span.first_position, {segment.table() + span.first_entry, span.n_entries}});
  }
  embeddings_.clear();
  for (uint32_t i = 0; i < step.n_embeddings; ++i)
    embeddings_.push_back({segment.embedding_rows()[i], segment.embeddings() + size_t{i} * l.n_embd});
  best_.clear();
  for (uint32_t i = 0; i < step.n_best; ++i) {
    const StoredBest want = segment.wanted()[i];
    best_.push_back({want.k, want.below, want.masked != 0 ? segment.mask(i) : nullptr});
  }
  batch_ = {
      {segment.tokens(), step.n_tokens}, sequences_, {segment.logit_rows(), step.n_logit_rows}, embeddings_, best_};
  TIE_TRY(layout_, KvLayout::for_model(whole, step.kv_type, step.kv_block_tokens));
  kv_blocks_ = step.kv_blocks;
  kv_offset_ = step.kv_offset;
  return {};
}

}  // namespace tie::bones
