// The ranks of one model at work: the leader (rank 0, in the process that drives the model) publishes each step in the
// segment, followers run it, all meet at its end. Threads: one at a time on the leader; a follower has one. The KV pool
// is one memory that every rank maps. Hosts start the processes and hand over descriptors; this file starts nothing.
// Deterministic: the same grid gives the same bits; ranks differ from one rank by the rounding of sums alone.
#pragma once
#include <cstddef>
#include <memory>
#include <span>

#include "inference/bones/communicator/rank_segment.h"
#include "inference/bones/communicator/shared_memory_ranks.h"
#include "inference/bones/model.h"

namespace tie::bones {

// What the team must agree on for a model and its options; `grid`: the place of any rank.
RankLimits rank_limits(const ModelConfig& whole, RankPlace grid, const ModelOptions& options);

// What every rank has: its packed image, the segment, the KV memory. The mappings are the caller's.
struct RankMemory {
  std::span<const std::byte> image;
  std::unique_ptr<RankSegment> segment;  // with its peers to watch already set
  std::span<std::byte> kv;               // 64-byte aligned
};

class RankLeader {
 public:
  // options.ranks is filled in here. Errors: Model::attach's, kBadRequest when the segment was made for other options.
  static Result<RankLeader> attach(RankMemory memory, ModelOptions options);
  RankLeader(RankLeader&&) noexcept = default;
  RankLeader& operator=(RankLeader&&) = delete;
  ~RankLeader();  // tells the followers to stop

  const ModelConfig& config() const { return model_->config(); }
  std::string_view kernels() const { return model_->kernels(); }
  std::span<std::byte> kv_memory() const { return memory_.kv; }

  // As Model::forward; kv must lie in kv_memory() (kBadRequest). kRuntimeLost within a second of a rank's death, and
  // ever after.
  Result<Logits> forward(const Batch& batch, const KvPool& kv);
  // Whether a rank is lost; looks at the processes, so an idle team notices too.
  bool lost() { return memory_.segment->failed(); }

 private:
  RankLeader(RankMemory memory, std::unique_ptr<SharedMemoryRanks> ranks, Model model)
      : memory_(std::move(memory)), ranks_(std::move(ranks)), model_(std::make_unique<Model>(std::move(model))) {}
  Result<void> publish(const Batch& batch, const KvPool& kv);

  RankMemory memory_;
  std::unique_ptr<SharedMemoryRanks> ranks_;
  std::unique_ptr<Model> model_;
};

// A follower's life: runs every step until the leader stops the team (then ok) or the team fails (kRuntimeLost).
Result<void> follow(RankMemory memory, uint32_t rank, ModelOptions options);

}  // namespace tie::bones
