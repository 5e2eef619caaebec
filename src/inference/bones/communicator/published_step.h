// One step of a model on several ranks as it lies in their segment: the leader writes it before the epoch grows,
// followers read it after. All ranks are one trust domain, yet every count is checked against the segment's limits
// before it is used. Threads: the leader's one, a follower's one.
#pragma once
#include <cstdint>
#include <vector>

#include "inference/bones/communicator/rank_segment.h"
#include "inference/bones/model.h"

namespace tie::bones {

// `kv` says layout and number of blocks, `kv_offset` where they begin in memory that the ranks share. The batch has
// been checked (Model::check). kTooLarge for block tables that the segment has no room for.
Result<void> publish_step(RankSegment& segment, const Batch& batch, const KvPool& kv, uint64_t kv_offset);

// What was published; the batch points into it and into the segment.
class PublishedStep {
 public:
  // kCorrupt for counts over the segment's limits.
  Result<void> read(RankSegment& segment, const ModelConfig& whole);

  const Batch& batch() const { return batch_; }
  const KvLayout& layout() const { return layout_; }
  uint32_t kv_blocks() const { return kv_blocks_; }
  uint64_t kv_offset() const { return kv_offset_; }

 private:
  Batch batch_;
  KvLayout layout_;
  uint32_t kv_blocks_ = 0;
  uint64_t kv_offset_ = 0;
  std::vector<SequenceSpan> sequences_;
  std::vector<EmbeddingRow> embeddings_;
  std::vector<BestOf> best_;
};

}  // namespace tie::bones
