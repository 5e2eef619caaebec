// A model on several GPUs, as the engine sees one: rank 0 computes here, each other rank is this same program
// started again with --as-gpu-rank, each on the GPU where the owner has put its weights, in the same container, with
// the descriptors of any rank (rank_start.h). Its lifeline first brings it its offer: the driver's handle to its
// weights, which no other follower learns, and NCCL's ids, drawn here. Weights are attached, never copied; the loan of
// all shards is held here. Threads: one at a time. A rank that dies, or the owner's end, makes the model lost(): the
// process ends, its container is recycled, the owner still has the weights. Emulated only so far.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "inference/bones/cuda/gpu_team.h"
#include "inference/engine/forward_model.h"
#include "inference/hosts/server/gpu_model.h"
#include "inference/hosts/server/weights_source.h"

namespace tie::runtime_host {

// How NCCL is to meet: on the loopback of the container's own network, and at once, before the ranks give up the means.
// Set in each process itself, since a hardened one has dropped what its environment said. Before NCCL is loaded.
void settle_nccl();

// The first argument of a GPU rank's process.
inline constexpr const char* kGpuRankArgument = "--as-gpu-rank";

class GpuRankedModel final : public engine::ForwardModel, private engine::KvDevice {
 public:
  // `model.gpu` must be there; its loan is taken over. Starts the processes: call before serving mode forbids it.
  // Errors: GpuTeamLeader::attach's, kNotFound without NCCL or kernels, kIo when a process cannot be started.
  static Result<std::unique_ptr<GpuRankedModel>> start(AttachedModel& model, const GpuFlags& flags,
                                                       bones::cuda::CudaModelOptions limits);
  ~GpuRankedModel() override;  // waits until the ranks have overwritten their KV memory and ended

  const bones::ModelConfig& config() const override { return leader_->model().config(); }
  Result<bones::Logits> forward(const bones::Batch& batch, const bones::KvPool& kv) override;
  bool finds_best() const override { return true; }
  std::string_view kernels() const override { return leader_->model().kernel_word(); }
  engine::KvDevice* kv_device() override { return this; }
  std::string_view kv_order() const override { return "cuda-1"; }  // as GpuModel
  bool lost() override;

 private:
  GpuRankedModel() = default;
  Result<void> start_rank(const AttachedModel& model, const GpuFlags& flags,
                          const bones::cuda::CudaModelOptions& limits, const bones::cuda::RankOffer& offer,
                          uint32_t rank, int segment_fd, std::vector<os::Fd>& peers);
  Result<void> reserve(const bones::KvLayout& layout, uint32_t n_blocks) override {
    return leader_->reserve(layout, n_blocks);
  }
  std::span<std::byte> staging() override { return leader_->staging(); }
  Result<void> put(uint32_t block) override { return leader_->put(block); }
  Result<void> get(uint32_t block) override { return leader_->get(block); }
  Result<void> zero(uint32_t block) override { return leader_->zero(block); }
  Result<void> copy(uint32_t to, uint32_t from) override { return leader_->copy(to, from); }

  os::Fd loan_, board_fd_;
  os::Mapping board_;
  std::vector<os::Fd> lifelines_;  // our ends of the ranks' sockets
  std::vector<os::Fd> processes_;  // readable once a rank has ended
  std::unique_ptr<bones::cuda::GpuTeamLeader> leader_;
};

// The life of a GPU rank's process: argv as start() wrote it. Returns the exit status.
int gpu_rank_main(int argc, char** argv);

}  // namespace tie::runtime_host
