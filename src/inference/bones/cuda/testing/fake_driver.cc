// A CUDA driver without a GPU: a shared library with the driver's symbols (cuda/driver.h loads it by path). GPU memory
// is this machine's memory (memfds, so that another process can attach by handle), kernels run on the block emulator at
// their launch, captured graphs are lists of launches with copies of their arguments. It counts what tests ask about:
// bytes copied to the "GPU", allocations, attaches. With TIE_FAKE_CUDA_DIR set, memory lies in files of that folder, so
// that programs of any user attach to each other's, and each allocation, copy to the GPU, attach and their ends are
// lines of its file `record`. TIE_FAKE_CUDA_DEVICES says how many GPUs there are (1); memory belongs to the GPU that
// was current on the thread, and only a thread on that GPU attaches to it. Where the process sees emulated device nodes
// (fake_nodes.h) these say how many GPUs there are, and memory and record are theirs: so in a whole node's sandboxes.
// Threads: any; one lock. Only for tests.
#include "inference/bones/cuda/testing/fake_driver.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "inference/bones/cuda/driver.h"
#include "inference/bones/cuda/testing/fake_nodes.h"
#include "inference/bones/kernels/cuda/emulator/emulated_kernels.h"
#include "inference/bones/kernels/cuda/emulator/emulated_tensor_map.h"

namespace {

using namespace tie::bones::cuda;

constexpr int kOk = 0, kInvalid = 1, kNoMemory = 2, kNoDevice = 101, kNotFound = 500, kLaunchFailed = 719;

struct Memory {
  int fd = -1, device = 0;
  size_t bytes = 0;
  bool attached = false;
  std::string name;
  uint64_t number = 0;  // behind device nodes
};

constexpr int kMostDevices = 16;

struct Call {
  const EmulatedKernel* kernel = nullptr;
  EmulatedLaunch launch;
  std::vector<unsigned char> args;
  void (*host)(void*) = nullptr;  // instead of a kernel: another library's work
  void* data = nullptr;
};
using CallList = std::vector<Call>;

struct Stream {
  CallList* capturing = nullptr;
};

std::recursive_mutex lock;
std::map<DevicePtr, Memory> memories;
FakeCudaCounters counters;
int capability =
    std::getenv("TIE_FAKE_CUDA_GENERATION") != nullptr ? std::atoi(std::getenv("TIE_FAKE_CUDA_GENERATION")) : 3;
std::string broken_kernel;
thread_local int current_device = 0;
std::string last_fault = "no error";

// The folder of this run's record; empty: none is kept.
const std::string& folder() {
  static const std::string path = [] {
    const char* given = std::getenv("TIE_FAKE_CUDA_DIR");
    return std::string(given ? given : "");
  }();
  return path;
}

// "PID WHAT BYTES", one line at a time from whichever process.
void record(const char* what, size_t bytes) {
  if (FakeNodes* nodes = FakeNodes::here()) return nodes->tell(current_device, what, bytes);
  static const int fd =
      folder().empty() ? -1 : ::open((folder() + "/record").c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return;
  char line[96];
  const int length = std::snprintf(line, sizeof line, "%d %s %zu\n", ::getpid(), what, bytes);
  if (::write(fd, line, static_cast<size_t>(length)) != length) std::abort();
}

// New memory of one allocation; its file's name, relative to the folder, goes to `name`.
int make_memory(size_t bytes, std::string& name, uint64_t& number) {
  if (FakeNodes* nodes = FakeNodes::here()) return nodes->alloc(current_device, bytes, number);
  if (folder().empty()) return ::memfd_create("fake-gpu", MFD_CLOEXEC);
  name = "memory-" + std::to_string(::getpid()) + "-" + std::to_string(counters.allocations);
  return ::open((folder() + "/" + name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

int map_memory(int fd, size_t bytes, bool attached, DevicePtr* at) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) return kNoMemory;
  *at = reinterpret_cast<DevicePtr>(p);
  memories[*at] = {fd, current_device, bytes, attached, {}, 0};
  return kOk;
}

int unmap_memory(DevicePtr at, bool attached) {
  auto found = memories.find(at);
  if (found == memories.end() || found->second.attached != attached) return kInvalid;
  const char* what = attached ? "detach" : "free";
  if (FakeNodes* nodes = FakeNodes::here())
    nodes->tell(found->second.device, what, found->second.bytes, found->second.number);
  else
    record(what, found->second.bytes);
  if (!found->second.name.empty()) ::unlink((folder() + "/" + found->second.name).c_str());
  ::munmap(reinterpret_cast<void*>(at), found->second.bytes);
  ::close(found->second.fd);
  memories.erase(found);
  return kOk;
}

// The whole range must lie in one allocation.
bool is_ours(DevicePtr at, size_t bytes) {
  auto after = memories.upper_bound(at);
  if (after == memories.begin()) return false;
  --after;
  return at - after->first <= after->second.bytes && bytes <= after->second.bytes - (at - after->first);
}

int run(const Call& call) {
  if (call.host) return call.host(call.data), kOk;
  ++counters.launches;
  if (broken_kernel == call.kernel->name) return kOk;
  auto ran = BlockEmulator().run(call.launch, [&](EmulatedBlock& b) { call.kernel->body(b, call.args.data()); });
  if (ran) return kOk;
  last_fault = std::string(call.kernel->name) + ": " + ran.error().message;
  return kLaunchFailed;
}

}  // namespace

extern "C" {

const FakeCudaCounters* tie_fake_cuda_counters() {
  return &counters;
}

int cuInit(unsigned) {
  return kOk;
}
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kOk;
}
int cuDeviceGet(int* device, int ordinal) {
  static const int count = [] {
    if (const FakeNodes* nodes = FakeNodes::here()) return nodes->count();
    const char* said = std::getenv("TIE_FAKE_CUDA_DEVICES");
    return said ? std::atoi(said) : 1;
  }();
  *device = ordinal;
  return ordinal >= 0 && ordinal < count && ordinal < kMostDevices ? kOk : kNoDevice;
}
int cuDeviceGetPCIBusId(char* address, int bytes, int device) {
  std::snprintf(address, static_cast<size_t>(bytes), "FA4E:%02X:00.0", device);
  return kOk;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  constexpr int kMajor = 75, kMinor = 76;
  *value = attribute == kMajor ? capability : attribute == kMinor ? 0 : 3;  // 3 multiprocessors, so that keys are split
  return kOk;
}
// A GPU of this generation; `broken`: a kernel of that name does nothing.
void tie_fake_cuda_become(int major, const char* broken) {
  capability = major;
  broken_kernel = broken;
}
// 16-bit elements, the 128-byte swizzle, strides of whole 16 bytes, as the real one demands.
int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, void* base, const uint64_t* sizes,
                           const uint64_t* strides, const uint32_t* box, const uint32_t* every, int interleave,
                           int swizzle, int, int fill) {
  const bool plain =
      (type == 6 || type == 9) && (rank == 2 || rank == 4) && interleave == 0 && swizzle == 3 && fill == 0;
  if (!plain || reinterpret_cast<uintptr_t>(base) % 16 != 0 || reinterpret_cast<uintptr_t>(map) % 64 != 0)
    return kInvalid;
  EmulatedTensorMap m{.base = reinterpret_cast<uint64_t>(base), .rank = rank};
  for (unsigned i = 0; i < rank; ++i) {
    m.size[i] = sizes[i];
    m.box[i] = box[i];
    if (i != 0) m.stride[i] = strides[i - 1];
    if (sizes[i] == 0 || box[i] == 0 || box[i] > 256 || every[i] != 1 || m.stride[i] % 16 != 0) return kInvalid;
  }
  std::memcpy(map, &m, sizeof m);
  return kOk;
}
// A context is its device's number, and 1.
int cuDevicePrimaryCtxRetain(void** context, int device) {
  current_device = device;
  record("device", static_cast<size_t>(device));
  *context = reinterpret_cast<void*>(static_cast<uintptr_t>(device) + 1);
  return kOk;
}
int cuCtxSetCurrent(void* context) {
  current_device = static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1;
  return kOk;
}
int cuModuleLoadData(void** module, const void*) {
  static int one;
  *module = &one;
  return kOk;
}
int cuModuleGetFunction(void** function, void*, const char* name) {
  *function = const_cast<EmulatedKernel*>(find_emulated_kernel(name));
  return *function ? kOk : kNotFound;
}
int cuFuncSetAttribute(void*, int, int value) {
  return value <= 227 << 10 ? kOk : kInvalid;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned, unsigned,
                   unsigned shared, void* stream, void** parameters, void**) {
  const auto* kernel = static_cast<const EmulatedKernel*>(function);
  if (!kernel || bx != kernel->threads || gx == 0 || gy == 0 || gz == 0 || gy > 65535 || gz > 65535) {
    last_fault = kernel ? std::string(kernel->name) + ": a launch of the wrong size" : "no function";
    return kInvalid;
  }
  Call call{.kernel = kernel, .launch = {.grid = {gx, gy, gz}, .threads = bx, .shared_bytes = shared}, .args = {}};
  const auto* args = static_cast<const unsigned char*>(parameters[0]);
  call.args.assign(args, args + kernel->args_bytes);
  auto* on = static_cast<Stream*>(stream);
  if (!on->capturing) return run(call);
  on->capturing->push_back(std::move(call));
  return kOk;
}
// What the emulated NCCL puts its work on a stream with.
int cuLaunchHostFunc(void* stream, void (*work)(void*), void* data) {
  Call call{.host = work, .data = data};
  auto* on = static_cast<Stream*>(stream);
  if (!on->capturing) return run(call);
  on->capturing->push_back(std::move(call));
  return kOk;
}
int cuMemAlloc_v2(DevicePtr* at, size_t bytes) {
  std::lock_guard guard(lock);
  std::string name;
  uint64_t number = 0;
  const int fd = make_memory(bytes, name, number);
  if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return kNoMemory;
  ++counters.allocations;
  if (!FakeNodes::here()) record("alloc", bytes);
  const int status = map_memory(fd, bytes, false, at);
  if (status == kOk) memories[*at].name = name, memories[*at].number = number;
  return status;
}
int cuMemFree_v2(DevicePtr at) {
  std::lock_guard guard(lock);
  return unmap_memory(at, false);
}
int cuMemsetD8_v2(DevicePtr at, unsigned char value, size_t bytes) {
  std::lock_guard guard(lock);
  if (!is_ours(at, bytes)) return kInvalid;
  std::memset(reinterpret_cast<void*>(at), value, bytes);
  return kOk;
}
int cuMemHostAlloc(void** at, size_t bytes, unsigned) {
  record("pin", bytes);
  *at = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return *at ? kOk : kNoMemory;
}
int cuMemFreeHost(void* at) {
  std::free(at);
  return kOk;
}
int cuMemcpyHtoD_v2(DevicePtr to, const void* from, size_t bytes) {
  std::lock_guard guard(lock);
  if (!is_ours(to, bytes)) return kInvalid;
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  counters.copied_in_bytes += bytes;
  record("copy", bytes);
  return kOk;
}
int cuMemcpyHtoDAsync_v2(DevicePtr to, const void* from, size_t bytes, void* stream) {
  return static_cast<Stream*>(stream)->capturing ? kInvalid : cuMemcpyHtoD_v2(to, from, bytes);
}
int cuMemsetD8Async(DevicePtr at, unsigned char value, size_t bytes, void* stream) {
  return static_cast<Stream*>(stream)->capturing ? kInvalid : cuMemsetD8_v2(at, value, bytes);
}
int cuMemcpyDtoDAsync_v2(DevicePtr to, DevicePtr from, size_t bytes, void* stream) {
  std::lock_guard guard(lock);
  if (static_cast<Stream*>(stream)->capturing || !is_ours(to, bytes) || !is_ours(from, bytes)) return kInvalid;
  std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return kOk;
}
int cuMemcpyDtoHAsync_v2(void* to, DevicePtr from, size_t bytes, void*) {
  std::lock_guard guard(lock);
  if (!is_ours(from, bytes)) return kInvalid;
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  counters.copied_out_bytes += bytes;
  record("read", bytes);
  return kOk;
}
int cuStreamCreate(void** stream, unsigned) {
  *stream = new Stream;
  return kOk;
}
int cuStreamDestroy_v2(void* stream) {
  delete static_cast<Stream*>(stream);
  return kOk;
}
int cuStreamSynchronize(void* stream) {
  return static_cast<Stream*>(stream)->capturing ? kInvalid : kOk;
}
int cuStreamQuery(void* stream) {
  return cuStreamSynchronize(stream);
}
int cuStreamBeginCapture_v2(void* stream, int) {
  static_cast<Stream*>(stream)->capturing = new CallList;
  return kOk;
}
int cuStreamEndCapture(void* stream, void** graph) {
  *graph = static_cast<Stream*>(stream)->capturing;
  static_cast<Stream*>(stream)->capturing = nullptr;
  return *graph ? kOk : kInvalid;
}
int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  *executable = new CallList(*static_cast<CallList*>(graph));
  return kOk;
}
int cuGraphLaunch(void* executable, void*) {
  for (const Call& call : *static_cast<CallList*>(executable))
    if (int status = run(call); status != kOk) return status;
  return kOk;
}
int cuGraphExecDestroy(void* executable) {
  delete static_cast<CallList*>(executable);
  return kOk;
}
int cuGraphDestroy(void* graph) {
  delete static_cast<CallList*>(graph);
  return kOk;
}
int cuIpcGetMemHandle(IpcHandle* handle, DevicePtr at) {
  std::lock_guard guard(lock);
  auto found = memories.find(at);
  if (found == memories.end() || found->second.attached) return kInvalid;
  std::memset(handle->bytes, 0, sizeof handle->bytes);
  if (const FakeNodes* nodes = FakeNodes::here()) {
    std::snprintf(reinterpret_cast<char*>(handle->bytes), sizeof handle->bytes, "%llu %zu %d",
                  static_cast<unsigned long long>(found->second.number), found->second.bytes,
                  nodes->number(found->second.device));
    return kOk;
  }
  if (!folder().empty()) {  // by name: another program may not look into this one's /proc
    std::snprintf(reinterpret_cast<char*>(handle->bytes), sizeof handle->bytes, "%s %zu %d", found->second.name.c_str(),
                  found->second.bytes, found->second.device);
    return kOk;
  }
  std::snprintf(reinterpret_cast<char*>(handle->bytes), sizeof handle->bytes, "/proc/%d/fd/%d %zu %d", ::getpid(),
                found->second.fd, found->second.bytes, found->second.device);
  return kOk;
}
int cuIpcOpenMemHandle_v2(DevicePtr* at, IpcHandle handle, unsigned) {
  std::lock_guard guard(lock);
  char path[64] = {};
  size_t bytes = 0;
  int device = 0;
  if (FakeNodes* nodes = FakeNodes::here()) {
    unsigned long long number = 0;
    if (std::sscanf(reinterpret_cast<const char*>(handle.bytes), "%llu %zu %d", &number, &bytes, &device) != 3 ||
        device != nodes->number(current_device))
      return kInvalid;
    const int fd = nodes->attach(current_device, bytes, number);
    if (fd < 0) return kInvalid;
    ++counters.attaches;
    const int status = map_memory(fd, bytes, true, at);
    if (status == kOk) memories[*at].number = number;
    return status;
  }
  if (std::sscanf(reinterpret_cast<const char*>(handle.bytes), "%63s %zu %d", path, &bytes, &device) != 3 ||
      device != current_device)
    return kInvalid;
  const std::string file = folder().empty() || path[0] == '/' ? path : folder() + "/" + path;
  const int fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return kInvalid;
  ++counters.attaches;
  record("attach", bytes);
  return map_memory(fd, bytes, true, at);
}
int cuIpcCloseMemHandle(DevicePtr at) {
  std::lock_guard guard(lock);
  return unmap_memory(at, true);
}
int cuGetErrorString(int, const char** text) {
  *text = last_fault.c_str();
  return kOk;
}
}
