#include "supervision/model_owner/gpu_weights.h"

#include <algorithm>
#include <thread>

#include "supervision/gpuhealthd/nvml_provider.h"

namespace tie::owner {
namespace {

using namespace bones::cuda;

constexpr uint64_t kPartBytes = uint64_t{8} << 20;
constexpr uint32_t kPartsAtOnce = 4;
constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING

class Stream {
 public:
  explicit Stream(Driver& driver) : driver_(driver) {}
  ~Stream() {
    if (stream_) driver_.stream_destroy(stream_);
  }
  Result<void> open() { return driver_.check(driver_.stream_create(&stream_, kNonBlocking), "making a stream"); }
  Result<void> read(void* to, DevicePtr from, size_t bytes) {
    TIE_CHECK_OK(driver_.check(driver_.copy_out_async(to, from, bytes, stream_), "reading GPU memory"));
    return driver_.check(driver_.stream_sync(stream_), "reading GPU memory");
  }

 private:
  Driver& driver_;
  void* stream_ = nullptr;
};

}  // namespace

Result<std::shared_ptr<GpuWeights>> GpuWeights::create(std::shared_ptr<Driver> driver, LoadedWeights loaded) {
  std::shared_ptr<GpuWeights> out(new GpuWeights);
  out->driver_ = std::move(driver);
  out->table_ = std::move(loaded.table);
  out->memory_ = std::move(loaded.memory);
  TIE_TRY(out->handle_, out->memory_.share());
  TIE_TRY(out->loaded_, out->digests());
  return out;
}

GpuWeights::~GpuWeights() {
  // Whichever thread lets go last: a server's that has never met the driver.
  if (driver_) (void)driver_->use_on_this_thread();
}

Result<std::vector<crypto::Digest>> GpuWeights::digests() const {
  TIE_CHECK_OK(driver_->use_on_this_thread());
  const uint64_t total = table_.bytes;
  TIE_TRY(const PinnedMemory buffer, PinnedMemory::allocate(driver_, std::min(total, kPartBytes * kPartsAtOnce)));
  Stream stream(*driver_);
  TIE_CHECK_OK(stream.open());
  std::vector<crypto::Digest> out((total + kPartBytes - 1) / kPartBytes);
  for (size_t first = 0; first < out.size(); first += kPartsAtOnce) {
    const uint64_t at = first * kPartBytes, bytes = std::min<uint64_t>(total - at, kPartBytes * kPartsAtOnce);
    TIE_CHECK_OK(stream.read(buffer.data(), memory_.at() + at, bytes));
    std::vector<std::thread> hashing;
    for (uint64_t part = 0; part * kPartBytes < bytes; ++part)
      hashing.emplace_back([&, part] {
        const uint64_t from = part * kPartBytes;
        out[first + part] = crypto::sha256(ByteView(buffer.data() + from, std::min(kPartBytes, bytes - from)));
      });
    for (std::thread& thread : hashing) thread.join();
  }
  return out;
}

Result<std::shared_ptr<void>> GpuWeights::lend() {
  std::lock_guard lock(mutex_);
  if (!holder_.expired()) return fail(Code::kNotReady, "another runtime still holds the GPU's weights");
  TIE_TRY(const std::vector<crypto::Digest> now, digests());
  if (now != loaded_) return fail(Code::kCorrupt, "the weights in GPU memory are not what was loaded any more");
  auto loan = std::make_shared<char>();
  holder_ = loan;
  return loan;
}

Result<std::shared_ptr<Driver>> GpuHost::driver(uint32_t device) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Driver>& opened = drivers_[device];
  if (!opened) {
    TIE_TRY(opened, Driver::load(static_cast<int>(device), options_.driver));
  }
  TIE_CHECK_OK(opened->use_on_this_thread());
  return opened;
}

Result<void> GpuHost::healthy() {
  TIE_TRY([[maybe_unused]] const auto opened, driver(0));
  auto provider = gpuhealth::make_nvml_provider(options_.nvml);
  if (!provider) return std::unexpected(std::move(provider.error()).context("asking for the GPU's health"));
  TIE_TRY(const auto devices, (*provider)->poll());
  if (devices.empty()) return fail(Code::kNotFound, "NVML knows no GPU");
  for (const gpuhealth::DeviceVerdict& device : devices)
    if (device.health != gpuhealth::Health::kHealthy)
      return fail(Code::kFailedPrecondition,
                  device.name + " is " + gpuhealth::health_name(device.health) + ": " + device.reason);
  return {};
}

Result<std::shared_ptr<GpuWeights>> GpuHost::load(ByteView gguf, bones::RankPlace place, uint32_t device) {
  TIE_TRY(auto opened, driver(device));
  TIE_TRY(LoadedWeights loaded, load_weights(opened, gguf, place));
  return GpuWeights::create(std::move(opened), std::move(loaded));
}

}  // namespace tie::owner
