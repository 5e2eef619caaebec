#include "inference/bones/model/batch_check.h"

#include <string>

namespace tie::bones {
namespace {

Result<void> check_span(const SequenceSpan& span, uint32_t next_row, const ModelConfig& c, const KvPool& kv) {
  if (span.n_rows == 0 || span.first_row != next_row)
    return fail(Code::kBadRequest, "the batch's sequences do not cover its rows in order");
  if (span.first_position > c.context_length || span.n_rows > c.context_length - span.first_position)
    return fail(Code::kContextExceeded, "position " + std::to_string(uint64_t{span.first_position} + span.n_rows) +
                                            " exceeds the model's context of " + std::to_string(c.context_length));
  const uint32_t blocks = kv.layout.blocks_for(span.first_position + span.n_rows);
  if (span.block_table.size() < blocks) return fail(Code::kBadRequest, "a sequence's block table is too short");
  for (uint32_t i = 0; i < blocks; ++i)
    if (span.block_table[i] >= kv.n_blocks) return fail(Code::kBadRequest, "a block number exceeds the KV pool");
  return {};
}

}  // namespace

Result<void> check_batch(const ModelConfig& whole, const BatchLimits& limits, const Batch& batch, const KvPool& kv) {
  const size_t rows = batch.tokens.size();
  if (rows == 0 || rows > limits.max_rows)
    return fail(Code::kBadRequest, "a batch must have between 1 and " + std::to_string(limits.max_rows) + " rows");
  if (batch.sequences.size() > limits.max_sequences) return fail(Code::kBadRequest, "a batch has too many sequences");
  if (batch.logit_rows.size() > limits.max_logit_rows)
    return fail(Code::kBadRequest, "a batch asks for too many rows of logits");
  const KvLayout& layout = kv.layout;
  TIE_CHECK_OK(KvLayout::for_model(whole, layout.type, layout.block_tokens));
  if (!kv.base || layout.n_layers != whole.n_layers || layout.n_kv_heads != whole.n_kv_heads ||
      layout.head_dim != whole.head_dim)
    return fail(Code::kBadRequest, "the KV pool's layout is not this model's");
  for (int32_t token : batch.tokens)
    if (token < 0 || static_cast<uint32_t>(token) >= whole.n_vocab)
      return fail(Code::kBadRequest, "token id " + std::to_string(token) + " is outside the vocabulary");
  uint32_t next_row = 0;
  for (const SequenceSpan& span : batch.sequences) {
    if (span.n_rows > rows - next_row)
      return fail(Code::kBadRequest, "the batch's sequences do not cover its rows in order");
    TIE_CHECK_OK(check_span(span, next_row, whole, kv));
    next_row += span.n_rows;
  }
  if (next_row != rows) return fail(Code::kBadRequest, "the batch's sequences do not cover its rows in order");
  for (size_t i = 0; i < batch.logit_rows.size(); ++i)
    if (batch.logit_rows[i] >= rows || (i > 0 && batch.logit_rows[i] <= batch.logit_rows[i - 1]))
      return fail(Code::kBadRequest, "rows of logits must be ascending rows of the batch");
  if (!batch.best.empty() && batch.best.size() != batch.logit_rows.size())
    return fail(Code::kBadRequest, "a batch says for some rows of logits alone what is wanted of them");
  for (const BestOf& want : batch.best)
    if (want.k > kMostBest) return fail(Code::kBadRequest, "more of a row's best ids are wanted than are ever told");
  for (const EmbeddingRow& given : batch.embeddings)
    if (given.row >= rows || !given.values)
      return fail(Code::kBadRequest, "an embedding names a row outside the batch");
  return {};
}

}  // namespace tie::bones
