// The ranks of one model on GPUs at work, each a process with a GPU of its own. The leader (rank 0, in the process that
// drives the model) publishes each step in the segment (communicator/rank_segment.h), the KV operations on a board
// beside it, followers do the same with their shard, all meet at the end. Between the ranks' GPUs NCCL moves what
// layers need; through shared memory go the batch, whole KV blocks (each rank takes and gives its own layers and heads)
// and the columns of logits, so that the engine sees one model with one pool. Threads: one at a time on the leader; a
// follower has one. A rank that dies fails the step within a tenth of a second, and every later one. Hosts start the
// processes and carry descriptors and offers; this file starts nothing. Secrets: a KV block and logits in the shared
// memory, which the next operation overwrites.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "inference/bones/communicator/published_step.h"
#include "inference/bones/communicator/rank_segment.h"
#include "inference/bones/cuda/cuda_model.h"
#include "inference/bones/cuda/device_kv.h"

namespace tie::bones::cuda {

// What a rank is told by whoever starts it, and nobody else: where its weights lie, whom it joins. Plain bytes.
struct RankOffer {
  IpcHandle weights{};
  uint64_t weight_bytes = 0;
  NcclUniqueId ranks{}, stages{};  // of its stage's ranks, of its tensor rank's stages; made by the leader
};

// Draws the ids for a whole grid; `weights` and `weight_bytes` are the caller's to fill in. The process that calls this
// must live until all have joined. Errors: Nccl's.
Result<std::vector<RankOffer>> offers_for(const Nccl& nccl, RankPlace grid);

struct GpuRankOptions {
  std::string driver = "libcuda.so.1", nccl = "libnccl.so.2";
  uint32_t gpu = 0;  // its number (gpu_numbers.h)
  int64_t join_ms = 60'000, step_ms = 30'000;
  CudaModelOptions model;
};

// One operation on every rank, as the leader writes it before the segment's epoch grows.
struct TeamOrder {
  enum Kind : uint32_t { kStep, kReserve, kPut, kGet, kZero, kCopy } kind = kStep;
  uint32_t block = 0, from = 0, n_blocks = 0;
  KvType kv_type = KvType::kF16;
  uint32_t block_tokens = 0;
};

// The shared memory beside the segment: the order and one block of the whole model. 64-byte aligned.
size_t board_bytes(const ModelConfig& whole);

// What the ranks' segment is made for.
RankLimits team_limits(const DeviceTable& table, const CudaModelOptions& options);

// One rank: its model, its part of the KV pool.
class GpuRank {
 public:
  // Joins the others, attaches to the weights and uses each communicator once, since NCCL connects at first use and
  // the process may give up the means to connect. `segment` and `board` must outlive it. kBadRequest (offer, table,
  // segment and grid differ), kCorrupt, those of Driver, Nccl, NcclRanks and CudaModel.
  static Result<std::unique_ptr<GpuRank>> attach(const DeviceTable& table, std::span<const std::byte> kernels,
                                                 const RankOffer& offer, const GpuRankOptions& options,
                                                 RankSegment& segment, std::span<std::byte> board);

  const CudaModel& model() const { return *model_; }
  // Does this rank's part. For a step `batch` is what was published.
  Result<void> run(const TeamOrder& order, const Batch& batch);
  Result<void> check(const Batch& batch) const;
  const KvLayout& layout() const { return layout_; }
  uint32_t n_blocks() const { return kv_ ? kv_->pool().n_blocks : 0; }
  Result<void> use_on_this_thread() const { return driver_->use_on_this_thread(); }

 private:
  GpuRank(RankSegment& segment, std::span<std::byte> board) : segment_(segment), board_(board) {}
  Result<void> rehearse();
  Result<void> reserve(const TeamOrder& order);
  Result<void> step(const Batch& batch);
  // This rank's part of the block on the board, to its staging memory or from it.
  void move_part(bool from_board);

  RankSegment& segment_;
  std::span<std::byte> board_;
  std::shared_ptr<Driver> driver_;
  std::shared_ptr<NcclRanks> ranks_, stages_;
  std::unique_ptr<CudaModel> model_;
  std::optional<DeviceKv> kv_;
  KvLayout layout_;               // of the whole model
  bool speaks_for_heads_ = true;  // of several ranks that hold the same heads, the first
};

class GpuTeamLeader {
 public:
  // `segment` with the peers to watch already set. Errors: GpuRank::attach's.
  static Result<std::unique_ptr<GpuTeamLeader>> attach(const DeviceTable& table, std::span<const std::byte> kernels,
                                                       const RankOffer& offer, const GpuRankOptions& options,
                                                       RankSegment segment, std::span<std::byte> board);
  ~GpuTeamLeader();  // tells the followers to stop
  GpuTeamLeader(const GpuTeamLeader&) = delete;

  const CudaModel& model() const { return rank_->model(); }
  // As Model::forward, over the reserved pool; whole rows, and the ranks' best ids, go through shared memory.
  // kRuntimeLost after a death.
  Result<Logits> forward(const Batch& batch);
  Result<void> reserve(const KvLayout& layout, uint32_t n_blocks);
  std::span<std::byte> staging();  // one block of the whole model
  Result<void> put(uint32_t block);
  Result<void> get(uint32_t block);
  Result<void> zero(uint32_t block);
  Result<void> copy(uint32_t to, uint32_t from);
  uint32_t n_blocks() const { return rank_->n_blocks(); }
  bool lost() { return segment_.failed(); }

 private:
  GpuTeamLeader(RankSegment segment, std::span<std::byte> board)
      : segment_(std::move(segment)),
        board_(board),
        best_(size_t{segment_.limits().max_logit_rows} * kMostBest),
        best_counts_(segment_.limits().max_logit_rows) {}
  // All ranks do it; a failure of any is the end of the team.
  Result<void> order(const TeamOrder& order, const Batch& batch);

  RankSegment segment_;
  std::span<std::byte> board_;
  std::unique_ptr<GpuRank> rank_;
  std::vector<Candidate> best_;
  std::vector<uint32_t> best_counts_;
};

// A follower's life: does every order until the leader stops the team (then ok) or the team fails (kRuntimeLost).
Result<void> follow_on_gpu(GpuRank& rank, RankSegment& segment, std::span<std::byte> board);

}  // namespace tie::bones::cuda
