// The CUDA driver, loaded by name at run time: bones links no CUDA library, and a machine without a GPU gets an error
// instead of a missing symbol. Declares the little of the driver's C interface that the back end uses. A path other
// than the system's loads the emulated driver in tests. Threads: the driver's own rules; a Driver is shared by all.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"

namespace tie::bones::cuda {

using DevicePtr = uint64_t;
struct IpcHandle {
  uint8_t bytes[64];
};

// The driver's entry points by their exported names. X(member, symbol, parameters)
#define TIE_CUDA_DRIVER(X)                                                                                          \
  X(init, cuInit, (unsigned flags))                                                                                 \
  X(driver_version, cuDriverGetVersion, (int* version))                                                             \
  X(device_get, cuDeviceGet, (int* device, int ordinal))                                                            \
  X(device_address, cuDeviceGetPCIBusId, (char* address, int bytes, int device))                                    \
  X(device_attribute, cuDeviceGetAttribute, (int* value, int attribute, int device))                                \
  X(context_retain, cuDevicePrimaryCtxRetain, (void** context, int device))                                         \
  X(context_set, cuCtxSetCurrent, (void* context))                                                                  \
  X(module_load, cuModuleLoadData, (void** module, const void* image))                                              \
  X(module_function, cuModuleGetFunction, (void** function, void* module, const char* name))                        \
  X(tensor_map_encode, cuTensorMapEncodeTiled,                                                                      \
    (void* map, int type, unsigned rank, void* base, const uint64_t* sizes, const uint64_t* strides,                \
     const uint32_t* box, const uint32_t* every, int interleave, int swizzle, int promotion, int fill))             \
  X(function_attribute, cuFuncSetAttribute, (void* function, int attribute, int value))                             \
  X(launch, cuLaunchKernel,                                                                                         \
    (void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, \
     void* stream, void** parameters, void** extra))                                                                \
  X(mem_alloc, cuMemAlloc_v2, (DevicePtr * at, size_t bytes))                                                       \
  X(mem_free, cuMemFree_v2, (DevicePtr at))                                                                         \
  X(mem_set, cuMemsetD8_v2, (DevicePtr at, unsigned char value, size_t bytes))                                      \
  X(mem_set_async, cuMemsetD8Async, (DevicePtr at, unsigned char value, size_t bytes, void* stream))                \
  X(copy_within_async, cuMemcpyDtoDAsync_v2, (DevicePtr to, DevicePtr from, size_t bytes, void* stream))            \
  X(host_alloc, cuMemHostAlloc, (void** at, size_t bytes, unsigned flags))                                          \
  X(host_free, cuMemFreeHost, (void* at))                                                                           \
  X(copy_in, cuMemcpyHtoD_v2, (DevicePtr to, const void* from, size_t bytes))                                       \
  X(copy_in_async, cuMemcpyHtoDAsync_v2, (DevicePtr to, const void* from, size_t bytes, void* stream))              \
  X(copy_out_async, cuMemcpyDtoHAsync_v2, (void* to, DevicePtr from, size_t bytes, void* stream))                   \
  X(stream_create, cuStreamCreate, (void** stream, unsigned flags))                                                 \
  X(stream_destroy, cuStreamDestroy_v2, (void* stream))                                                             \
  X(stream_sync, cuStreamSynchronize, (void* stream))                                                               \
  X(stream_query, cuStreamQuery, (void* stream))                                                                    \
  X(capture_begin, cuStreamBeginCapture_v2, (void* stream, int mode))                                               \
  X(capture_end, cuStreamEndCapture, (void* stream, void** graph))                                                  \
  X(graph_instantiate, cuGraphInstantiateWithFlags, (void** executable, void* graph, unsigned long long flags))     \
  X(graph_launch, cuGraphLaunch, (void* executable, void* stream))                                                  \
  X(graph_exec_destroy, cuGraphExecDestroy, (void* executable))                                                     \
  X(graph_destroy, cuGraphDestroy, (void* graph))                                                                   \
  X(ipc_get, cuIpcGetMemHandle, (IpcHandle * handle, DevicePtr at))                                                 \
  X(ipc_open, cuIpcOpenMemHandle_v2, (DevicePtr * at, IpcHandle handle, unsigned flags))                            \
  X(ipc_close, cuIpcCloseMemHandle, (DevicePtr at))                                                                 \
  X(error_text, cuGetErrorString, (int error, const char** text))

class Driver {
 public:
  // Loads the library and makes `device`'s primary context current on this thread. kNotFound: no such library;
  // kUnsupportedFeature: a symbol or device is missing; kIo with the driver's words.
  // `device`: as the driver counts.
  static Result<std::shared_ptr<Driver>> load(int device = 0, const std::string& library = "libcuda.so.1");
  // The GPU of that number (gpu_numbers.h). Also kNotFound: it is not here, or this process does not see its node.
  static Result<std::shared_ptr<Driver>> load_gpu(uint32_t number, const std::string& library = "libcuda.so.1");
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // kIo, "doing: the driver's words", unless status is success.
  Result<void> check(int status, const char* doing) const;
  // For threads other than the one that loaded it.
  Result<void> use_on_this_thread() const;
  int device() const { return device_; }  // as the driver names it

#define TIE_CUDA_MEMBER(member, symbol, parameters) int(*member) parameters = nullptr;
  TIE_CUDA_DRIVER(TIE_CUDA_MEMBER)
#undef TIE_CUDA_MEMBER

 private:
  Driver() = default;
  static Result<std::shared_ptr<Driver>> open(const std::string& library);
  Result<void> choose(int device);
  void* library_ = nullptr;
  void* context_ = nullptr;
  int device_ = 0;
};

// Memory of the GPU, or pinned memory of the CPU; freed with the object. Pinned memory comes from cuMemHostAlloc:
// in confidential mode nothing else can be copied without a bounce.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory();
  static Result<DeviceMemory> allocate(std::shared_ptr<Driver> driver, size_t bytes);
  // What another process has allocated and still owns. Never copied.
  static Result<DeviceMemory> attach(std::shared_ptr<Driver> driver, const IpcHandle& handle, size_t bytes);
  Result<IpcHandle> share() const;
  DevicePtr at() const { return at_; }
  size_t size() const { return bytes_; }

 private:
  std::shared_ptr<Driver> driver_;
  DevicePtr at_ = 0;
  size_t bytes_ = 0;
  bool attached_ = false;
};

class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&& other) noexcept;
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  ~PinnedMemory();
  static Result<PinnedMemory> allocate(std::shared_ptr<Driver> driver, size_t bytes);
  uint8_t* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  std::shared_ptr<Driver> driver_;
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tie::bones::cuda
