// How the key blocks of a few deep items of attention are spread over threads: each takes a run of about as many keys,
// in the order of items, so that it knows what it reads next. Decided once for a pass, from shapes alone.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "inference/bones/model.h"

namespace tie::bones {

// What attention works through: rows of one sequence and one kv head, as (row, head) pairs: up to 8 of a decode step,
// up to kItemTiles times 8 of a prompt, which then share what they read of the cache.
struct AttentionItem {
  uint32_t sequence, kv_head, first_pair,
      n_pairs;             // pair p: row p / group of the sequence, head p % group of the kv head
  uint32_t first_partial;  // where a split item keeps its partials
};

struct KeyBlocks {
  uint32_t first, last;  // of kKeyBlock keys
};

// The blocks of which some row of an item sees a key. `group`: query heads of a kv head; `window` 0: all earlier keys.
KeyBlocks blocks_of(const Batch& batch, const AttentionItem& item, uint32_t group, uint32_t window);

// Where a thread begins.
struct KeyCut {
  uint32_t item, block;
};

// cuts[t] for each thread, and the end of all items. This step's own keys are not divided: whoever attends to them is
// whoever stores them.
void cut_keys(std::span<const AttentionItem> items, const Batch& batch, uint32_t group, uint32_t window,
              uint32_t n_threads, std::vector<KeyCut>& cuts);

// A thread's part of one item.
struct KeyPart {
  uint32_t item;
  KeyBlocks of_item, own;
  uint32_t first_end;  // where the part ends that begins the item
  bool whole() const { return own.first == of_item.first && own.last == of_item.last; }
  bool newest() const { return own.last == of_item.last; }
};

// Goes through the parts of a thread, the last item first: what two threads share, the one with its beginning attends
// to first and the other last.
class KeyShare {
 public:
  KeyShare(std::span<const AttentionItem> items, const Batch& batch, uint32_t group, uint32_t window,
           std::span<const KeyCut> cuts, uint32_t thread)
      : items_(items),
        batch_(batch),
        group_(group),
        window_(window),
        cuts_(cuts),
        thread_(thread),
        behind_(cuts[thread + 1].item + 1) {}
  bool take(KeyPart& part);

 private:
  const std::span<const AttentionItem> items_;
  const Batch& batch_;
  const uint32_t group_, window_;
  const std::span<const KeyCut> cuts_;
  const uint32_t thread_;
  uint32_t behind_;  // the item after the next to take
};

}  // namespace tie::bones
