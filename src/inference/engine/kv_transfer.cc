#include "inference/engine/kv_transfer.h"

#include <algorithm>

namespace tie::engine {

uint32_t KvExports::begin(std::shared_ptr<KvExport> target, std::span<const uint32_t> whole_blocks) {
  uint32_t first = target->first_block();
  if (first >= whole_blocks.size() || target->max_blocks() == 0) {
    target->finish(0);
    return 0;
  }
  auto wanted = whole_blocks.subspan(first);
  wanted = wanted.first(std::min<size_t>(wanted.size(), target->max_blocks()));
  for (uint32_t block : wanted) pool_.share(block);
  waiting_.push_back({std::move(target), {wanted.begin(), wanted.end()}, 0, Deadline::in_ms(kDeadlineMs)});
  return static_cast<uint32_t>(wanted.size());
}

// What has been copied is already given back.
void KvExports::release(Waiting& one) {
  for (; one.next < one.blocks.size(); ++one.next) pool_.release(one.blocks[one.next]);
}

bool KvExports::copy(size_t& left) {
  bool worked = !waiting_.empty();
  const size_t block_bytes = pool_.layout().block_bytes();
  while (!waiting_.empty() && left > 0) {
    Waiting& one = waiting_.front();
    bool alive = !one.deadline.passed();
    while (alive && one.next < one.blocks.size() && left > 0) {
      uint32_t block = one.blocks[one.next];
      auto bytes = pool_.to_read(block);
      alive = bytes && one.target->write(one.next, *bytes).has_value();
      left -= std::min(left, block_bytes);
      pool_.release(block);
      ++one.next;
    }
    if (alive && one.next < one.blocks.size()) break;
    if (alive)
      one.target->finish(static_cast<uint32_t>(one.blocks.size()));
    else
      one.target->abandon();
    release(one);
    waiting_.pop_front();
  }
  return worked;
}

void KvExports::abandon_all() {
  for (Waiting& one : waiting_) {
    one.target->abandon();
    release(one);
  }
  waiting_.clear();
}

}  // namespace tie::engine
