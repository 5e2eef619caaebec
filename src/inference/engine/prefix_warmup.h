// Computes the KV blocks of the system prompts, once, in memory of its own: what a warming runtime puts into the sealed
// pool. Before the engine starts; one thread.
#pragma once
#include <functional>

#include "cache/prefix/prefix_trie.h"
#include "inference/bones/kv_layout.h"
#include "inference/engine/forward_model.h"

namespace tie::engine {

using WriteBlock = std::function<Result<void>(uint32_t index, std::span<const std::byte> payload)>;

// Every block of `plan` (cache/prefix, plan_blocks) is computed after the blocks before it and given to `write` once.
// max_rows: tokens in one forward pass. Errors: kBadRequest (a token the model does not have, a prompt over the
// context, a plan of another block size), those of the model and of `write`.
Result<void> compute_prefix_blocks(ForwardModel& model, const bones::KvLayout& layout, const prefix::TrieMetadata& plan,
                                   uint32_t max_rows, const WriteBlock& write);

}  // namespace tie::engine
