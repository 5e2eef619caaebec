// The GPUs' communicator: NCCL, loaded by name like the driver, for the ranks of one model: those that share
// layers (tensor ranks), or those that hand rows on (stages). Each rank is a
// process with a GPU of its own; all make the same calls in the same order, on their model's stream. No wait here is
// without end: joining has a deadline, and wait() looks for dead peers, for errors that NCCL found by itself and for
// the deadline, and aborts the communicator then, which ends what still runs on the GPU. After that every call answers
// kRuntimeLost: the process should end. Threads: one at a time. The declarations are those of NVIDIA's public nccl.h,
// 2.14 and later of major version 2 (an older library has no joining without blocking, another major version may have
// another interface); the config is that of 2.14, which later libraries accept by its size and version.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "inference/bones/cuda/driver.h"

namespace tie::bones::cuda {

struct NcclUniqueId {
  std::array<char, 128> bytes{};  // drawn by one rank, carried to the others by whoever starts them
};

struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

// X(member, symbol, parameters); each returns ncclResult_t: 0 success, 7 in progress, else an error.
#define TIE_NCCL(X)                                                                                        \
  X(get_version, ncclGetVersion, (int* version))                                                           \
  X(get_unique_id, ncclGetUniqueId, (NcclUniqueId * id))                                                   \
  X(init, ncclCommInitRankConfig, (void** comm, int ranks, NcclUniqueId id, int rank, NcclConfig* config)) \
  X(destroy, ncclCommDestroy, (void* comm))                                                                \
  X(abort, ncclCommAbort, (void* comm))                                                                    \
  X(async_error, ncclCommGetAsyncError, (void* comm, int* error))                                          \
  X(all_reduce, ncclAllReduce,                                                                             \
    (const void* from, void* to, size_t count, int type, int operation, void* comm, void* stream))         \
  X(send, ncclSend, (const void* from, size_t count, int type, int peer, void* comm, void* stream))        \
  X(recv, ncclRecv, (void* to, size_t count, int type, int peer, void* comm, void* stream))

class Nccl {
 public:
  // kNotFound: no such library; kUnsupportedFeature: a symbol is missing or the version is not one of those above.
  static Result<std::shared_ptr<Nccl>> load(const std::string& library = "libnccl.so.2");
  Result<NcclUniqueId> unique_id() const;
  int version() const { return version_; }
  std::string text(int result) const;

#define TIE_NCCL_MEMBER(member, symbol, parameters) int(*member) parameters = nullptr;
  TIE_NCCL(TIE_NCCL_MEMBER)
#undef TIE_NCCL_MEMBER

 private:
  const char* (*error_text_)(int) = nullptr;
  int version_ = 0;
};

struct NcclRankOptions {
  uint32_t rank = 0, ranks = 1;
  int64_t join_ms = 60'000;         // until every rank has come
  int64_t step_ms = 30'000;         // of one wait()
  std::function<bool()> peer_lost;  // asked while waiting; may be empty
};

class NcclRanks {
 public:
  // Every rank with the same id. kDeadline: not all came; kRuntimeLost; kBadRequest; kIo with NCCL's words. The
  // driver's context must be current.
  static Result<std::unique_ptr<NcclRanks>> join(std::shared_ptr<Nccl> nccl, std::shared_ptr<Driver> driver,
                                                 const NcclUniqueId& id, NcclRankOptions options);
  ~NcclRanks();
  NcclRanks(const NcclRanks&) = delete;

  uint32_t rank() const { return options_.rank; }
  uint32_t ranks() const { return options_.ranks; }

  // Sums of all ranks, in place.
  Result<void> all_reduce(float* at, size_t count, void* stream);
  // One way from a rank to another; both make their call.
  Result<void> send(const float* from, size_t count, uint32_t to_rank, void* stream);
  Result<void> receive(float* to, size_t count, uint32_t from_rank, void* stream);
  // Until the stream has done all of it, without an error that NCCL knows of (what a graph replays returns none).
  Result<void> wait(void* stream);
  bool lost() const { return lost_; }

 private:
  NcclRanks(std::shared_ptr<Nccl> nccl, std::shared_ptr<Driver> driver, NcclRankOptions options);
  Result<void> settle(int result, const char* doing, const Deadline& deadline);
  Result<void> look(const Deadline& deadline, const char* doing);
  Result<void> no_error(const char* doing);
  Result<void> started(int result, const char* doing);
  std::unexpected<Error> give_up(Code code, const std::string& why);

  std::shared_ptr<Nccl> nccl_;
  std::shared_ptr<Driver> driver_;
  const NcclRankOptions options_;
  void* comm_ = nullptr;
  bool lost_ = false;
};

}  // namespace tie::bones::cuda
