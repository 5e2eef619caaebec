// A model whose ranks are processes of this runtime (bones/communicator): rank 0 computes here, the others are this
// same program started again with --as-rank, in the same container, with four descriptors and nothing else: their
// weights, the meeting place, the KV memory, and a socket that closes when we end. Threads: one at a time. A rank that
// dies fails the step and every later one (lost()); the runtime then ends, its container is recycled, the owner still
// has the weights.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "inference/bones/communicator/rank_team.h"
#include "inference/engine/forward_model.h"
#include "inference/hosts/server/weights_source.h"

namespace tie::runtime_host {

// The first argument of a rank's process.
inline constexpr const char* kRankArgument = "--as-rank";

// Threads of rank `rank` of so many: on CPUs of their own, those behind the earlier ranks', when the ranks' threads are
// as many as the machine's CPUs.
bones::ThreadPoolOptions pool_of_rank(uint32_t rank, uint32_t threads, uint32_t ranks);

class RankedModel final : public engine::ForwardModel {
 public:
  // Starts the processes: call before serving mode forbids it. options.pool: rank 0's threads; every rank has as many.
  // Errors: those of RankLeader::attach, kIo when a process cannot be started.
  static Result<std::unique_ptr<RankedModel>> start(const AttachedModel& model, const bones::ModelOptions& options,
                                                    size_t kv_bytes);

  const bones::ModelConfig& config() const override { return leader_->config(); }
  Result<bones::Logits> forward(const bones::Batch& batch, const bones::KvPool& kv) override {
    return leader_->forward(batch, kv);
  }
  bool finds_best() const override { return true; }
  std::string_view kernels() const override { return leader_->kernels(); }
  std::span<std::byte> kv_memory() override { return leader_->kv_memory(); }
  bool lost() override { return leader_->lost(); }

 private:
  RankedModel() = default;
  Result<void> start_rank(const AttachedModel& model, const bones::ModelOptions& options, uint32_t rank, int segment_fd,
                          std::vector<os::Fd>& peers);

  os::Fd kv_fd_;
  os::Mapping kv_memory_;
  std::vector<os::Fd> lifelines_;  // our ends of the ranks' sockets
  std::unique_ptr<bones::RankLeader> leader_;
};

// The life of a rank's process: argv as start() wrote it. Returns the exit status.
int rank_main(int argc, char** argv);

}  // namespace tie::runtime_host
