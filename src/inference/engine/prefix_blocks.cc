#include "inference/engine/prefix_blocks.h"

#include <algorithm>

#include "inference/engine/request.h"

namespace tie::engine {

PrefixBlocks::PrefixBlocks(PrefixSource* source, KvBlockPool& pool)
    : source_(source), pool_(pool), hot_(source != nullptr ? source->block_count() : 0) {}

// False when there is no room, or the block fails its check: what is not there is computed.
bool PrefixBlocks::warm(uint32_t index) {
  Hot& hot = hot_[index];
  hot.used = ++clock_;
  if (hot.block != kCold) {
    ++hits_;
    return true;
  }
  auto block = pool_.allocate();
  if (!block) return false;
  ++misses_;
  if (!source_->read(index, pool_.to_write(*block)) || !pool_.written(*block)) {
    pool_.release(*block);
    failed_ = true;
    return false;
  }
  hot.block = *block;
  return true;
}

uint32_t PrefixBlocks::lend(Sequence& sequence) {
  if (source_ == nullptr || failed_ || !sequence.blocks.empty()) return 0;
  for (uint32_t index : source_->match(std::span(sequence.tokens).first(sequence.n_prompt))) {
    if (index >= hot_.size() || !warm(index)) break;
    pool_.share(hot_[index].block);
    sequence.blocks.push_back(hot_[index].block);
  }
  sequence.n_cached = static_cast<uint32_t>(sequence.blocks.size()) * pool_.layout().block_tokens;
  return sequence.n_cached;
}

bool PrefixBlocks::evict_one() {
  Hot* oldest = nullptr;
  for (Hot& hot : hot_)
    if (hot.block != kCold && !pool_.shared(hot.block) && (oldest == nullptr || hot.used < oldest->used)) oldest = &hot;
  if (oldest == nullptr) return false;
  pool_.release(oldest->block);
  oldest->block = kCold;
  return true;
}

uint32_t PrefixBlocks::evictable() const {
  return static_cast<uint32_t>(std::count_if(
      hot_.begin(), hot_.end(), [this](const Hot& hot) { return hot.block != kCold && !pool_.shared(hot.block); }));
}

}  // namespace tie::engine
