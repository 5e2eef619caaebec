#include "inference/bones/communicator/testing/forked_ranks.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "os/process.h"

namespace tie::bones::testing {
namespace {

ModelOptions model_options(const ForkedRanksOptions& o, ThreadPool* pool) {
  return {.pool = pool,
          .kernels = o.kernels,
          .max_batch_rows = o.max_batch_rows,
          .max_logit_rows = o.max_logit_rows,
          .max_sequences = o.max_sequences};
}

ThreadPoolOptions pool_options(const ForkedRanksOptions& o, uint32_t rank) {
  return {.n_threads = o.threads_per_rank, .own_cpus = o.own_cpus, .first_cpu = rank * o.threads_per_rank};
}

Result<std::unique_ptr<RankSegment>> open_segment(int fd, std::vector<os::Fd> peers) {
  TIE_TRY(RankSegment segment, RankSegment::open(os::Fd(::dup(fd))));
  segment.watch(PeerWatch(std::move(peers)));
  return std::make_unique<RankSegment>(std::move(segment));
}

// Each rank packs its own image, in memory that is its own.
Result<void> follower_life(const ForkedRanksOptions& o, ByteView gguf, int segment_fd, int kv_fd, uint32_t rank) {
  TIE_TRY(const OwnedImage image, OwnedImage::from_gguf(gguf, nullptr, o.grid.at(rank)));
  ThreadPool pool(pool_options(o, rank));
  pool.keep_caller_on_its_cpu();
  std::vector<os::Fd> peers(1);
  TIE_TRY(peers[0], os::pidfd_open(::getppid()));
  TIE_TRY(auto segment, open_segment(segment_fd, std::move(peers)));
  TIE_TRY(os::Mapping kv, os::Mapping::read_write(kv_fd));
  return follow({image.bytes(), std::move(segment), kv.writable()}, rank, model_options(o, &pool));
}

}  // namespace

ForkedRanks::ForkedRanks(ForkedRanks&&) noexcept = default;

Result<ForkedRanks> ForkedRanks::start(ByteView gguf, const ForkedRanksOptions& o) {
  ForkedRanks out;
  for (uint32_t i = 1; i < o.grid.count(); ++i) TIE_CHECK_OK(PackPlan::from_gguf(gguf, o.grid.at(i)));
  TIE_TRY(const PackPlan plan, PackPlan::from_gguf(gguf, o.grid.at(0)));
  RankLimits limits = rank_limits(plan.config(), o.grid, model_options(o, nullptr));
  limits.threads_per_rank = o.threads_per_rank;
  TIE_TRY(RankSegment created, RankSegment::create(limits));
  TIE_TRY(out.kv_.layout, KvLayout::for_model(plan.config(), o.kv_type));
  out.kv_.n_blocks = out.kv_.layout.blocks_for(o.kv_tokens);
  TIE_TRY(out.kv_fd_, os::create_memfd("tie-rank-kv", out.kv_.n_blocks * out.kv_.layout.block_bytes()));
  TIE_TRY(out.kv_memory_, os::Mapping::read_write(out.kv_fd_.get()));
  out.kv_.base = out.kv_memory_.writable().data();
  std::vector<os::Fd> peers;
  std::fflush(nullptr);
  for (uint32_t rank = 1; rank < o.grid.count(); ++rank) {
    const pid_t child = ::fork();
    if (child < 0) return fail_errno("fork", errno);
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::_exit(follower_life(o, gguf, created.fd(), out.kv_fd_.get(), rank) ? 0 : 3);
    }
    out.followers_.push_back(child);
    TIE_TRY(os::Fd peer, os::pidfd_open(child));
    peers.push_back(std::move(peer));
  }
  TIE_TRY(out.image_, OwnedImage::from_gguf(gguf, nullptr, o.grid.at(0)));
  out.pool_ = std::make_unique<ThreadPool>(pool_options(o, 0));
  TIE_TRY(auto segment, open_segment(created.fd(), std::move(peers)));
  TIE_TRY(RankLeader leader, RankLeader::attach({out.image_.bytes(), std::move(segment), out.kv_memory_.writable()},
                                                model_options(o, out.pool_.get())));
  out.leader_ = std::make_unique<RankLeader>(std::move(leader));
  return out;
}

int ForkedRanks::wait_for(uint32_t index) {
  int status = 0;
  ::waitpid(followers_[index], &status, 0);
  followers_[index] = -1;
  return status;
}

ForkedRanks::~ForkedRanks() {
  leader_.reset();
  for (pid_t follower : followers_) {
    if (follower <= 0) continue;
    ::waitpid(follower, nullptr, 0);
  }
}

}  // namespace tie::bones::testing
