// NCCL without GPUs: a shared library with NCCL's symbols over the emulated driver, whose GPU memory is this process's.
// Ranks are processes that meet in a file named by the unique id; every call is done when it returns. A rank that dies
// lets go of its lock on the file: the others' calls answer an error, as NCCL's do when a connection breaks. Behaviour
// from the environment: TIE_FAKE_NCCL_VERSION (the version it says), TIE_FAKE_NCCL_BROKEN (what ncclCommGetAsyncError
// answers). Only for tests.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "inference/bones/cuda/nccl.h"

namespace {

using tie::bones::cuda::NcclConfig;
using tie::bones::cuda::NcclUniqueId;

constexpr int kSuccess = 0, kSystemError = 2, kInvalidArgument = 4, kRemoteError = 6, kInProgress = 7;
constexpr int kMaxRanks = 8;
constexpr size_t kSlotBytes = size_t{4} << 20;

struct Shared {
  std::atomic<uint32_t> joined{0}, arrived{0}, round{0};
};

struct Comm {
  int fd = -1;
  Shared* shared = nullptr;
  uint8_t* slots = nullptr;
  int rank = 0, ranks = 1;
  bool aborted = false;
  uint8_t* slot(int of) const { return slots + size_t(of) * kSlotBytes; }
};

constexpr size_t kFileBytes = 4096 + kMaxRanks * kSlotBytes;

struct flock lock_of(int rank, short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

bool alive(const Comm& comm, int rank) {
  if (rank == comm.rank) return true;
  struct flock lock = lock_of(rank, F_WRLCK);
  return ::fcntl(comm.fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

// Everybody's copy is in its slot, or everybody has read them.
int meet(const Comm& comm) {
  const uint32_t round = comm.shared->round.load();
  if (comm.shared->arrived.fetch_add(1) + 1 == static_cast<uint32_t>(comm.ranks)) {
    comm.shared->arrived.store(0);
    comm.shared->round.fetch_add(1);
    return kSuccess;
  }
  while (comm.shared->round.load() == round) {
    for (int rank = 0; rank < comm.ranks; ++rank)
      if (!alive(comm, rank) && comm.shared->round.load() == round) return kRemoteError;
    ::usleep(1000);
  }
  return kSuccess;
}

template <typename Take>
int exchange(Comm* comm, const void* from, size_t bytes, Take take) {
  if (!comm || comm->aborted || bytes > kSlotBytes) return kInvalidArgument;
  std::memcpy(comm->slot(comm->rank), from, bytes);
  if (int result = meet(*comm); result != kSuccess) return result;
  take();
  return meet(*comm);
}

// The ranks' addends in rank order.
void add_up(const Comm& comm, size_t first, size_t count, float* to) {
  for (size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int rank = 0; rank < comm.ranks; ++rank) sum += reinterpret_cast<const float*>(comm.slot(rank))[first + i];
    to[i] = sum;
  }
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  const char* said = std::getenv("TIE_FAKE_NCCL_VERSION");
  *version = said ? std::atoi(said) : 22203;
  return kSuccess;
}
const char* ncclGetErrorString(int result) {
  return result == kRemoteError ? "remote process exited or there was a network error" : "fake error";
}
int ncclGetUniqueId(NcclUniqueId* id) {
  std::string name = "/tmp/tie-fake-nccl-XXXXXX";
  const int fd = ::mkstemp(name.data());
  if (fd < 0 || ::ftruncate(fd, kFileBytes) != 0) return kSystemError;
  ::close(fd);
  std::snprintf(id->bytes.data(), id->bytes.size(), "%s", name.c_str());
  return kSuccess;
}
int ncclCommInitRankConfig(void** out, int ranks, NcclUniqueId id, int rank, NcclConfig* config) {
  if (ranks > kMaxRanks || config->magic != 0xcafebeef || config->blocking != 0) return kInvalidArgument;
  auto* comm = new Comm;
  comm->fd = ::open(id.bytes.data(), O_RDWR | O_CLOEXEC);
  void* at = ::mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, comm->fd, 0);
  struct flock lock = lock_of(rank, F_WRLCK);
  if (comm->fd < 0 || at == MAP_FAILED || ::fcntl(comm->fd, F_OFD_SETLK, &lock) != 0) return kSystemError;
  comm->shared = static_cast<Shared*>(at);
  comm->slots = static_cast<uint8_t*>(at) + 4096;
  comm->rank = rank, comm->ranks = ranks;
  *out = comm;
  if (comm->shared->joined.fetch_add(1) + 1 == static_cast<uint32_t>(ranks)) ::unlink(id.bytes.data());
  return kInProgress;
}
int ncclCommGetAsyncError(void* at, int* error) {
  auto* comm = static_cast<Comm*>(at);
  const char* broken = std::getenv("TIE_FAKE_NCCL_BROKEN");
  *error = broken ? std::atoi(broken)
                  : (comm->shared->joined.load() < static_cast<uint32_t>(comm->ranks) ? kInProgress : kSuccess);
  return kSuccess;
}
int ncclCommDestroy(void* at) {
  auto* comm = static_cast<Comm*>(at);
  ::munmap(comm->shared, kFileBytes);
  ::close(comm->fd);
  delete comm;
  return kSuccess;
}
int ncclCommAbort(void* at) {
  return ncclCommDestroy(at);
}
int ncclAllReduce(const void* from, void* to, size_t count, int type, int operation, void* at, void*) {
  auto* comm = static_cast<Comm*>(at);
  if (type != 7 || operation != 0) return kInvalidArgument;
  return exchange(comm, from, count * 4, [&] { add_up(*comm, 0, count, static_cast<float*>(to)); });
}
int ncclReduceScatter(const void* from, void* to, size_t count, int type, int operation, void* at, void*) {
  auto* comm = static_cast<Comm*>(at);
  if (type != 7 || operation != 0) return kInvalidArgument;
  return exchange(comm, from, count * 4 * static_cast<size_t>(comm->ranks),
                  [&] { add_up(*comm, count * static_cast<size_t>(comm->rank), count, static_cast<float*>(to)); });
}
int ncclAllGather(const void* from, void* to, size_t count, int type, void* at, void*) {
  auto* comm = static_cast<Comm*>(at);
  if (type != 3) return kInvalidArgument;
  return exchange(comm, from, count * 4, [&] {
    for (int rank = 0; rank < comm->ranks; ++rank)
      std::memcpy(static_cast<uint8_t*>(to) + static_cast<size_t>(rank) * count * 4, comm->slot(rank), count * 4);
  });
}
}
