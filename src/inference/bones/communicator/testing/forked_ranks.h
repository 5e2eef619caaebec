// A team of real rank processes for tests and the bench: packs an image per rank, forks the followers, leads from this
// process. Call while this process has no other threads. Followers end with the object.
#pragma once
#include <sys/types.h>

#include <memory>
#include <vector>

#include "base/bytes.h"
#include "inference/bones/communicator/rank_team.h"
#include "inference/bones/thread_pool.h"
#include "os/memfd.h"

namespace tie::bones::testing {

struct ForkedRanksOptions {
  RankPlace grid;
  uint32_t threads_per_rank = 1;
  std::string kernels;
  uint32_t max_batch_rows = 64, max_logit_rows = 64, max_sequences = 8;
  uint32_t kv_tokens = 512;
  KvType kv_type = KvType::kF16;
  bool own_cpus = false;  // each rank's threads stay on CPUs of their own
};

class ForkedRanks {
 public:
  static Result<ForkedRanks> start(ByteView gguf, const ForkedRanksOptions& options);
  ForkedRanks(ForkedRanks&&) noexcept;
  ~ForkedRanks();

  RankLeader& leader() { return *leader_; }
  const KvPool& kv() const { return kv_; }
  pid_t follower(uint32_t index) const { return followers_[index]; }
  uint32_t followers() const { return static_cast<uint32_t>(followers_.size()); }
  // Waits for a follower's exit status; it is no longer this object's then.
  int wait_for(uint32_t index);

 private:
  ForkedRanks() = default;
  std::unique_ptr<ThreadPool> pool_;
  os::Fd kv_fd_;
  os::Mapping kv_memory_;
  KvPool kv_;
  OwnedImage image_;
  std::unique_ptr<RankLeader> leader_;
  std::vector<pid_t> followers_;
};

}  // namespace tie::bones::testing
