#include "inference/bones/ops/key_shares.h"

#include <algorithm>

#include "inference/bones/kernels/kernel_set.h"

namespace tie::bones {
namespace {

struct Keys {
  uint32_t first, last;
};

Keys keys_of(const Batch& batch, const AttentionItem& item, uint32_t group, uint32_t window) {
  const uint32_t start = batch.sequences[item.sequence].first_position, end = start + item.first_pair / group + 1;
  return {window != 0 && end > window ? end - window : 0, start + (item.first_pair + item.n_pairs - 1) / group + 1};
}

KeyBlocks blocks_of(const Keys& keys) {
  return {keys.first / kKeyBlock, (keys.last + kKeyBlock - 1) / kKeyBlock};
}

}  // namespace

KeyBlocks blocks_of(const Batch& batch, const AttentionItem& item, uint32_t group, uint32_t window) {
  return blocks_of(keys_of(batch, item, group, window));
}

void cut_keys(std::span<const AttentionItem> items, const Batch& batch, uint32_t group, uint32_t window,
              uint32_t n_threads, std::vector<KeyCut>& cuts) {
  uint64_t total = 0, before = 0;
  for (const AttentionItem& item : items) {
    const Keys keys = keys_of(batch, item, group, window);
    total += keys.last - keys.first;
  }
  cuts.clear();
  for (uint32_t i = 0; i < items.size(); ++i) {
    const Keys keys = keys_of(batch, items[i], group, window);
    const uint64_t behind = before + keys.last - keys.first;
    const uint32_t newest = batch.sequences[items[i].sequence].first_position / kKeyBlock;
    for (uint64_t at; cuts.size() < n_threads && (at = total * cuts.size() / n_threads) < behind;) {
      const uint32_t first = blocks_of(keys).first,
                     nearest = (keys.first + static_cast<uint32_t>(at - before) + kKeyBlock / 2) / kKeyBlock;
      cuts.push_back({i, at == before ? first : std::max(std::min(nearest, newest), first)});
    }
    before = behind;
  }
  cuts.resize(n_threads + 1, {static_cast<uint32_t>(items.size()), 0});
}

bool KeyShare::take(KeyPart& part) {
  const KeyCut& begin = cuts_[thread_];
  const KeyCut& end = cuts_[thread_ + 1];
  while (behind_ > begin.item) {
    const uint32_t i = --behind_;
    if (i == items_.size()) continue;
    const KeyBlocks all = blocks_of(batch_, items_[i], group_, window_);
    const KeyBlocks own{i == begin.item ? begin.block : all.first, i == end.item ? end.block : all.last};
    if (own.first >= own.last) continue;
    part = {i, all, own, own.last};
    for (uint32_t t = thread_; t > 0 && cuts_[t].item == i && cuts_[t].block > all.first; --t)
      part.first_end = cuts_[t].block;
    return true;
  }
  return false;
}

}  // namespace tie::bones
