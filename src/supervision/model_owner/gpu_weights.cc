#include "supervision/model_owner/gpu_weights.h"

#include <algorithm>
#include <thread>

#include "inference/bones/cuda/gpu_numbers.h"
#include "inference/bones/cuda/kernel_file.h"
#include "supervision/gpuhealthd/nvml_provider.h"
#include "supervision/model_owner/fingerprint_tree.h"

namespace tie::owner {
namespace {

using namespace bones::cuda;

Result<uint32_t> gpu_of(uint32_t rank, std::span<const uint32_t> named) {
  if (rank < named.size()) return named[rank];
  return usual_gpu_of_rank(rank, visible_gpus());
}

}  // namespace

Result<std::shared_ptr<GpuWeights>> GpuWeights::load(std::shared_ptr<Driver> driver,
                                                     std::shared_ptr<FingerprintReader> reader, ByteView gguf,
                                                     bones::RankPlace place, uint32_t gpu) {
  std::shared_ptr<GpuWeights> out(new GpuWeights);
  FingerprintTree tree;
  TIE_TRY(LoadedWeights loaded, load_weights(driver, gguf, place, [&](ByteView bytes) { tree.add(bytes); }));
  tree.add(Bytes(loaded.memory.size() - loaded.table.bytes));  // lent with them, and zeros
  out->loaded_ = tree.finish();
  out->driver_ = std::move(driver);
  out->reader_ = std::move(reader);
  out->gpu_ = gpu;
  out->table_ = std::move(loaded.table);
  out->memory_ = std::move(loaded.memory);
  TIE_TRY(out->handle_, out->memory_.share());
  const std::atomic<bool> never{false};
  std::atomic<uint64_t> looked_at{0};
  TIE_CHECK_OK(out->compare(never, looked_at));
  return out;
}

GpuWeights::~GpuWeights() {
  // Whichever thread lets go last: a server's that has never met the driver.
  if (driver_) (void)driver_->use_on_this_thread();
}

Result<void> GpuWeights::compare(const std::atomic<bool>& stop, std::atomic<uint64_t>& looked_at) const {
  return reader_->read(memory_.at(), memory_.size(), stop,
                       [&](uint64_t first, std::span<const Fingerprint> parts) -> Result<void> {
                         if (!std::equal(parts.begin(), parts.end(), loaded_.begin() + static_cast<ptrdiff_t>(first)))
                           return fail(Code::kCorrupt, "the weights in GPU memory are not what was loaded");
                         looked_at = std::min(table_.bytes, (first + parts.size()) * kFingerprintPartBytes);
                         return {};
                       });
}

Result<std::shared_ptr<GpuLoan>> GpuWeights::borrow() {
  std::lock_guard lock(mutex_);
  if (!holder_.expired()) return fail(Code::kNotReady, "another runtime still holds the GPU's weights");
  std::shared_ptr<GpuLoan> loan(new GpuLoan(shared_from_this()));
  holder_ = loan;
  if (was_lent_)
    loan->looking_ = std::thread([&look = *loan] { look.look(); });
  else
    loan->outcome_.emplace();
  return loan;
}

void GpuWeights::mark_lent() {
  std::lock_guard lock(mutex_);
  was_lent_ = true;
}

void GpuLoan::look() {
  auto outcome = weights_->compare(stop_, looked_at_);
  std::lock_guard lock(mutex_);
  outcome_ = std::move(outcome);
  over_.notify_all();
}

Result<bool> GpuLoan::lent(Deadline deadline) {
  std::unique_lock lock(mutex_);
  over_.wait_for(lock, std::chrono::milliseconds(deadline.remaining_ms()), [&] { return outcome_.has_value(); });
  if (!outcome_) return false;
  TIE_CHECK_OK(*outcome_);
  weights_->mark_lent();
  return true;
}

GpuLoan::~GpuLoan() {
  stop_ = true;
  if (looking_.joinable()) looking_.join();
}

Result<std::shared_ptr<Driver>> GpuHost::driver(uint32_t gpu) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Driver>& opened = drivers_[gpu];
  if (!opened) {
    TIE_TRY(opened, Driver::load_gpu(gpu, options_.driver));
  }
  TIE_CHECK_OK(opened->use_on_this_thread());
  return opened;
}

Result<std::shared_ptr<FingerprintReader>> GpuHost::reader(uint32_t gpu) {
  TIE_TRY(auto opened, driver(gpu));
  std::lock_guard lock(mutex_);
  std::shared_ptr<FingerprintReader>& made = readers_[gpu];
  if (!made) {
    TIE_TRY(const Bytes kernels, read_gpu_kernels(options_.kernels));
    TIE_TRY(made, FingerprintReader::create(std::move(opened),
                                            {reinterpret_cast<const std::byte*>(kernels.data()), kernels.size()}));
  }
  return made;
}

Result<void> GpuHost::healthy(std::span<const uint32_t> gpus) {
  TIE_TRY(const uint32_t first, gpu_of(0, gpus));
  TIE_TRY([[maybe_unused]] const auto opened, driver(first));
  TIE_TRY([[maybe_unused]] const auto kernels, reader(first));
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

Result<std::shared_ptr<GpuWeights>> GpuHost::load(ByteView gguf, bones::RankPlace place,
                                                  std::span<const uint32_t> gpus) {
  TIE_TRY(const uint32_t gpu, gpu_of(place.index(), gpus));
  TIE_TRY(auto opened, driver(gpu));
  TIE_TRY(auto kernels, reader(gpu));
  return GpuWeights::load(std::move(opened), std::move(kernels), gguf, place, gpu);
}

}  // namespace tie::owner
