// NCCL without GPUs: a shared library with NCCL's symbols over the emulated driver, whose GPU memory is this process's.
// Ranks are processes that meet in a file named by the unique id; every call puts its work on the stream of the
// emulated driver beside this library, where it is done at once, or captured and done at each replay. A rank that dies
// lets go of its lock on the file: the others' calls answer an error, as NCCL's do when a connection breaks, and so
// does ncclCommGetAsyncError from then on. With TIE_FAKE_CUDA_DIR the file lies there. Behaviour
// from the environment: TIE_FAKE_NCCL_VERSION (the version it says), TIE_FAKE_NCCL_BROKEN (what ncclCommGetAsyncError
// answers). Only for tests.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <string>

#include "inference/bones/cuda/nccl.h"

namespace {

using tie::bones::cuda::NcclConfig;
using tie::bones::cuda::NcclUniqueId;

constexpr int kSuccess = 0, kSystemError = 2, kInvalidArgument = 4, kRemoteError = 6, kInProgress = 7;
constexpr int kMaxRanks = 8;
constexpr size_t kSlotBytes = size_t{4} << 20;

struct Shared {
  std::atomic<uint32_t> joined{0}, arrived{0}, round{0};
  std::atomic<uint32_t> mail[kMaxRanks];  // 1: what this rank sent has not been taken yet
};

struct Comm {
  int fd = -1;
  Shared* shared = nullptr;
  uint8_t* slots = nullptr;
  int rank = 0, ranks = 1, error = kSuccess;
  std::deque<std::function<int()>> works;  // of this process's life: a graph may replay any of them
  uint8_t* slot(int of) const { return slots + size_t(of) * kSlotBytes; }
  uint8_t* mail(int of) const { return slots + size_t(kMaxRanks + of) * kSlotBytes; }
};

constexpr size_t kFileBytes = 4096 + 2 * kMaxRanks * kSlotBytes;

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
    ::usleep(50);
  }
  return kSuccess;
}

using HostWork = void (*)(void*);

// cuLaunchHostFunc of the emulated driver in this library's folder.
auto launch_host() {
  static const auto found = [] {
    Dl_info self{};
    ::dladdr(reinterpret_cast<void*>(&alive), &self);
    const std::string path = self.dli_fname, folder = path.substr(0, path.rfind('/'));
    void* driver = nullptr;
    for (const char* name : {"/libtie_fake_cuda.so", "/libcuda.so.1"})  // as built, and as installed for a whole node
      if (!driver) driver = ::dlopen((folder + name).c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (!driver) std::abort();
    return reinterpret_cast<int (*)(void*, HostWork, void*)>(::dlsym(driver, "cuLaunchHostFunc"));
  }();
  return found;
}

// A communicator that has met an error does no more work.
int enqueue(Comm* comm, void* stream, std::function<int()> work) {
  if (comm->error != kSuccess) return comm->error;
  comm->works.push_back([comm, work = std::move(work)] { return comm->error = work(); });
  const int launched = launch_host()(
      stream,
      [](void* at) {
        auto& job = *static_cast<std::function<int()>*>(at);
        (void)job();
      },
      &comm->works.back());
  return launched != 0 ? kSystemError : comm->error;
}

template <typename Take>
int exchange(Comm* comm, const void* from, size_t bytes, void* stream, Take take) {
  if (!comm || bytes > kSlotBytes) return kInvalidArgument;
  return enqueue(comm, stream, [=] {
    if (comm->error != kSuccess) return comm->error;
    std::memcpy(comm->slot(comm->rank), from, bytes);
    if (int result = meet(*comm); result != kSuccess) return result;
    take();
    return meet(*comm);
  });
}

// Until a rank's mail is there (1), or has been taken (0).
int wait_for_mail(const Comm& comm, int sender, uint32_t state, int peer) {
  while (comm.shared->mail[sender].load() != state) {
    if (!alive(comm, peer) && comm.shared->mail[sender].load() != state) return kRemoteError;
    ::usleep(50);
  }
  return kSuccess;
}

// The ranks' addends in rank order.
void add_up(const Comm& comm, size_t count, float* to) {
  for (size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int rank = 0; rank < comm.ranks; ++rank) sum += reinterpret_cast<const float*>(comm.slot(rank))[i];
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
  const char* folder = std::getenv("TIE_FAKE_CUDA_DIR");
  // A node's sandboxes have no /tmp, and one of ranks on GPUs has shared memory, by which real ones meet, too.
  std::string name = std::string(folder ? folder : ::access("/tmp", W_OK) == 0 ? "/tmp" : "/dev/shm");
  name += "/tie-fake-nccl-XXXXXX";
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
  *error = broken                                                             ? std::atoi(broken)
           : comm->error != kSuccess                                          ? comm->error
           : comm->shared->joined.load() < static_cast<uint32_t>(comm->ranks) ? kInProgress
                                                                              : kSuccess;
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
int ncclAllReduce(const void* from, void* to, size_t count, int type, int operation, void* at, void* stream) {
  auto* comm = static_cast<Comm*>(at);
  if (type != 7 || operation != 0) return kInvalidArgument;
  return exchange(comm, from, count * 4, stream, [=] { add_up(*comm, count, static_cast<float*>(to)); });
}
// One letter of a sender at a time.
int ncclSend(const void* from, size_t count, int type, int peer, void* at, void* stream) {
  auto* comm = static_cast<Comm*>(at);
  if (type != 7 || peer < 0 || peer >= comm->ranks || count * 4 > kSlotBytes) return kInvalidArgument;
  return enqueue(comm, stream, [=] {
    if (int result = wait_for_mail(*comm, comm->rank, 0, peer); result != kSuccess) return result;
    std::memcpy(comm->mail(comm->rank), from, count * 4);
    comm->shared->mail[comm->rank].store(1);
    return kSuccess;
  });
}
int ncclRecv(void* to, size_t count, int type, int peer, void* at, void* stream) {
  auto* comm = static_cast<Comm*>(at);
  if (type != 7 || peer < 0 || peer >= comm->ranks || count * 4 > kSlotBytes) return kInvalidArgument;
  return enqueue(comm, stream, [=] {
    if (int result = wait_for_mail(*comm, peer, 1, peer); result != kSuccess) return result;
    std::memcpy(to, comm->mail(peer), count * 4);
    comm->shared->mail[peer].store(0);
    return kSuccess;
  });
}
}
