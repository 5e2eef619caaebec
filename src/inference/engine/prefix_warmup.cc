#include "inference/engine/prefix_warmup.h"

#include <algorithm>

#include "inference/engine/kv_pool.h"

namespace tie::engine {
namespace {

// One prompt through the model: blocks that an earlier prompt has computed are taken as they are.
Result<void> compute_prompt(ForwardModel& model, const bones::KvPool& kv, const prefix::PromptEntry& prompt,
                            std::vector<bool>& done, uint32_t block_tokens, uint32_t max_rows) {
  size_t first = 0;
  while (first < prompt.blocks.size() && done[prompt.blocks[first]]) ++first;
  auto at = static_cast<uint32_t>(first) * block_tokens;
  auto end = static_cast<uint32_t>(prompt.blocks.size()) * block_tokens;
  while (at < end) {
    uint32_t rows = std::min(max_rows, end - at);
    bones::SequenceSpan span{.first_row = 0, .n_rows = rows, .first_position = at, .block_table = prompt.blocks};
    bones::Batch batch{.tokens = std::span(prompt.tokens).subspan(at, rows),
                       .sequences = {&span, 1},
                       .logit_rows = {},
                       .embeddings = {}};
    TIE_TRY(auto logits, model.forward(batch, kv));
    (void)logits;
    at += rows;
  }
  for (uint32_t block : prompt.blocks) done[block] = true;
  return {};
}

}  // namespace

Result<void> compute_prefix_blocks(ForwardModel& model, const bones::KvLayout& layout, const prefix::TrieMetadata& plan,
                                   uint32_t max_rows, const WriteBlock& write) {
  if (plan.block_tokens != layout.block_tokens || plan.block_bytes != layout.block_bytes())
    return fail(Code::kBadRequest, "the plan is for another block size");
  TIE_TRY(KvBlockPool pool, KvBlockPool::create_for(model, layout, plan.block_count()));
  std::vector<bool> done(plan.block_count(), false);
  for (const prefix::PromptEntry& prompt : plan.prompts) {
    if (prompt.blocks.size() * plan.block_tokens >= model.config().context_length)
      return fail(Code::kBadRequest, "prompt " + prompt.id + " fills the model's context");
    TIE_CHECK_OK(compute_prompt(model, pool.view(), prompt, done, plan.block_tokens, max_rows));
  }
  for (uint32_t i = 0; i < plan.block_count(); ++i) {
    TIE_TRY(const auto bytes, pool.to_read(i));
    TIE_CHECK_OK(write(i, bytes));
  }
  return {};
}

}  // namespace tie::engine
