// Attention of a batch over the paged KV: cuts the batch into items (sequence, kv head, up to 8 query rows), hands them
// to threads, and for a few long sequences spreads the key blocks of one item over threads (key_shares.h). Both ways
// merge the same blocks in the same order, so the result is the same to the bit.
#pragma once
#include <cstdint>

#include "inference/bones/kernels/kernel_set.h"
#include "inference/bones/model.h"
#include "inference/bones/ops/workspace.h"

namespace tie::bones {

struct AttentionLayer {
  uint32_t layer = 0;
  uint32_t window = 0;  // 0: all earlier keys
  float soft_cap = 0.0f;
};

struct AttentionPlan {
  bool split = false;  // the key blocks of an item are spread over threads
  bool even = false;   // all items are as long, so each thread takes an equal run of them
};

// Fills ws.items for the batch. Even items lie head by head if `by_head`: a thread that computed a run of columns has
// those heads' queries in its cache. Allocates nothing.
AttentionPlan plan_attention(Workspace& ws, const ModelConfig& config, const Batch& batch, uint32_t n_threads,
                             bool by_head);

// One thread's items: [first, last), or with `waiting` whichever nobody has taken.
struct ItemShare {
  uint32_t first = 0, last = 0;
  bool waiting = true;
};

// What is to happen on a thread that attends to an item, before it does; null: nothing. `heads`: where the item's query
// heads are to be for this thread alone, [pair][head_dim], because others attend to the item as well; null: in ws.q.
// `newest`: whether this thread stores the keys and values of the step.
struct ItemHook {
  void* context = nullptr;
  void (*call)(void* context, const AttentionItem& item, float* heads, bool newest) = nullptr;
};

// One thread's part: with `split` attend_split on every thread, else attend_items. Output: ws.attended.
void attend_items(const KernelSet& kernels, Workspace& ws, const ModelConfig& config, const Batch& batch,
                  const KvPool& kv, const AttentionLayer& layer, uint32_t thread, const ItemShare& items,
                  const ItemHook& before);
void attend_split(const KernelSet& kernels, Workspace& ws, const ModelConfig& config, const Batch& batch,
                  const KvPool& kv, const AttentionLayer& layer, uint32_t thread, const ItemHook& before);

// Asks for the first keys and values that this thread will attend to in a split layer, while it waits for others.
void fetch_split(const Workspace& ws, const ModelConfig& config, const Batch& batch, const KvPool& kv,
                 const AttentionLayer& layer, uint32_t thread);

}  // namespace tie::bones
