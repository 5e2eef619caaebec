#include "inference/bones/cuda/driver.h"

#include <dlfcn.h>

#include <utility>
#include <vector>

#include "inference/bones/cuda/gpu_numbers.h"

namespace tie::bones::cuda {

Result<std::shared_ptr<Driver>> Driver::open(const std::string& library) {
  std::shared_ptr<Driver> driver(new Driver);
  driver->library_ = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!driver->library_) return fail(Code::kNotFound, "no CUDA driver on this machine: " + library);
#define TIE_CUDA_LOAD(member, symbol, parameters)                                                  \
  driver->member = reinterpret_cast<decltype(driver->member)>(::dlsym(driver->library_, #symbol)); \
  if (!driver->member) return fail(Code::kUnsupportedFeature, "the CUDA driver is too old: no " #symbol);
  TIE_CUDA_DRIVER(TIE_CUDA_LOAD)
#undef TIE_CUDA_LOAD
  TIE_CHECK_OK(driver->check(driver->init(0), "starting the CUDA driver"));
  return driver;
}

Result<void> Driver::choose(int device) {
  TIE_CHECK_OK(check(device_get(&device_, device), ("finding GPU " + std::to_string(device)).c_str()));
  TIE_CHECK_OK(check(context_retain(&context_, device_), "opening the GPU"));
  return use_on_this_thread();
}

Result<std::shared_ptr<Driver>> Driver::load(int device, const std::string& library) {
  TIE_TRY(auto driver, open(library));
  TIE_CHECK_OK(driver->choose(device));
  return driver;
}

Result<std::shared_ptr<Driver>> Driver::load_gpu(uint32_t number, const std::string& library) {
  TIE_TRY(auto driver, open(library));
  std::vector<std::string> addresses;
  for (int device = 0;
       addresses.size() < kMostGpus && driver->device_get(&device, static_cast<int>(addresses.size())) == 0;) {
    char address[32] = {};
    TIE_CHECK_OK(driver->check(driver->device_address(address, sizeof address - 1, device), "asking where a GPU is"));
    addresses.emplace_back(address);
  }
  const std::vector<uint32_t> visible = visible_gpus();
  TIE_TRY(const int count, count_of_gpu(number, addresses, visible));
  TIE_CHECK_OK(driver->choose(count));
  return driver;
}

// The library stays loaded: a driver that is closed and opened again in one process is a road nobody travels.
Driver::~Driver() = default;

Result<void> Driver::check(int status, const char* doing) const {
  if (status == 0) return {};
  const char* text = nullptr;
  if (!error_text || error_text(status, &text) != 0 || !text) text = "unknown error";
  return fail(Code::kIo, std::string(doing) + ": " + text + " (" + std::to_string(status) + ")");
}

Result<void> Driver::use_on_this_thread() const {
  return check(context_set(context_), "choosing the GPU");
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept {
  *this = std::move(other);
}
DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(at_, other.at_);
  std::swap(bytes_, other.bytes_);
  std::swap(attached_, other.attached_);
  return *this;
}
DeviceMemory::~DeviceMemory() {
  if (!at_) return;
  if (attached_)
    driver_->ipc_close(at_);
  else
    driver_->mem_free(at_);
}

Result<DeviceMemory> DeviceMemory::allocate(std::shared_ptr<Driver> driver, size_t bytes) {
  DeviceMemory out;
  TIE_CHECK_OK(driver->check(driver->mem_alloc(&out.at_, bytes), "allocating GPU memory"));
  out.driver_ = std::move(driver);
  out.bytes_ = bytes;
  return out;
}

Result<DeviceMemory> DeviceMemory::attach(std::shared_ptr<Driver> driver, const IpcHandle& handle, size_t bytes) {
  constexpr unsigned kLazyPeerAccess = 1;
  DeviceMemory out;
  TIE_CHECK_OK(driver->check(driver->ipc_open(&out.at_, handle, kLazyPeerAccess), "attaching to another's GPU memory"));
  out.driver_ = std::move(driver);
  out.bytes_ = bytes;
  out.attached_ = true;
  return out;
}

Result<IpcHandle> DeviceMemory::share() const {
  if (!at_ || attached_) return fail(Code::kFailedPrecondition, "only the owner of GPU memory shares it");
  IpcHandle handle{};
  TIE_CHECK_OK(driver_->check(driver_->ipc_get(&handle, at_), "sharing GPU memory"));
  return handle;
}

PinnedMemory::PinnedMemory(PinnedMemory&& other) noexcept {
  *this = std::move(other);
}
PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
PinnedMemory::~PinnedMemory() {
  if (data_) driver_->host_free(data_);
}

Result<PinnedMemory> PinnedMemory::allocate(std::shared_ptr<Driver> driver, size_t bytes) {
  PinnedMemory out;
  void* at = nullptr;
  TIE_CHECK_OK(driver->check(driver->host_alloc(&at, bytes, 0), "allocating pinned memory"));
  out.data_ = static_cast<uint8_t*>(at);
  out.driver_ = std::move(driver);
  out.bytes_ = bytes;
  return out;
}

}  // namespace tie::bones::cuda
