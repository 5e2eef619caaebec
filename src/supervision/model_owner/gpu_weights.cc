#include "supervision/model_owner/gpu_weights.h"

#include <algorithm>
#include <thread>

#include "inference/bones/cuda/gpu_numbers.h"
#include "supervision/gpuhealthd/nvml_provider.h"

namespace tie::owner {
namespace {

using namespace bones::cuda;

constexpr uint64_t kPartBytes = uint64_t{4} << 20;
constexpr uint32_t kMostPartsAtOnce = 16;  // a thread and twice kPartBytes of pinned memory for each
constexpr unsigned kNonBlocking = 1;       // CU_STREAM_NON_BLOCKING

class Stream {
 public:
  explicit Stream(Driver& driver) : driver_(driver) {}
  ~Stream() {
    if (stream_) driver_.stream_destroy(stream_);
  }
  Result<void> open() { return driver_.check(driver_.stream_create(&stream_, kNonBlocking), "making a stream"); }
  Result<void> begin(void* to, DevicePtr from, size_t bytes) {
    return driver_.check(driver_.copy_out_async(to, from, bytes, stream_), "reading GPU memory");
  }
  Result<void> finish() { return driver_.check(driver_.stream_sync(stream_), "reading GPU memory"); }

 private:
  Driver& driver_;
  void* stream_ = nullptr;
};

Result<uint32_t> gpu_of(uint32_t rank, std::span<const uint32_t> named) {
  if (rank < named.size()) return named[rank];
  return usual_gpu_of_rank(rank, visible_gpus());
}

}  // namespace

Result<std::shared_ptr<GpuWeights>> GpuWeights::create(std::shared_ptr<Driver> driver, LoadedWeights loaded,
                                                       uint32_t gpu) {
  std::shared_ptr<GpuWeights> out(new GpuWeights);
  out->driver_ = std::move(driver);
  out->gpu_ = gpu;
  out->table_ = std::move(loaded.table);
  out->memory_ = std::move(loaded.memory);
  TIE_TRY(out->handle_, out->memory_.share());
  const std::atomic<bool> never{false};
  TIE_CHECK_OK(out->digest_parts(never, [&](size_t, std::span<const crypto::Digest> parts) -> Result<void> {
    out->loaded_.insert(out->loaded_.end(), parts.begin(), parts.end());
    return {};
  }));
  return out;
}

GpuWeights::~GpuWeights() {
  // Whichever thread lets go last: a server's that has never met the driver.
  if (driver_) (void)driver_->use_on_this_thread();
}

// While the threads hash one half of the buffer the GPU fills the other.
Result<void> GpuWeights::digest_parts(const std::atomic<bool>& stop, const EachPart& each) const {
  TIE_CHECK_OK(driver_->use_on_this_thread());
  const uint64_t total = table_.bytes;
  const uint64_t at_once = kPartBytes * std::clamp(std::thread::hardware_concurrency(), 1u, kMostPartsAtOnce);
  const uint64_t half = std::min(total, at_once);
  TIE_TRY(const PinnedMemory buffer, PinnedMemory::allocate(driver_, 2 * half));
  Stream stream(*driver_);
  TIE_CHECK_OK(stream.open());
  auto bytes_at = [&](uint64_t at) { return std::min(total - at, half); };
  if (total != 0) TIE_CHECK_OK(stream.begin(buffer.data(), memory_.at(), bytes_at(0)));
  for (uint64_t at = 0, turn = 0; at < total; at += half, ++turn) {
    TIE_CHECK_OK(stream.finish());
    if (stop) return fail(Code::kCancelled, "nobody waits for it any more");
    if (at + half < total)
      TIE_CHECK_OK(stream.begin(buffer.data() + (turn + 1) % 2 * half, memory_.at() + at + half, bytes_at(at + half)));
    const ByteView now(buffer.data() + turn % 2 * half, bytes_at(at));
    std::vector<crypto::Digest> digests((now.size() + kPartBytes - 1) / kPartBytes);
    std::vector<std::thread> hashing;
    for (size_t part = 0; part < digests.size(); ++part)
      hashing.emplace_back([&, part] {
        const uint64_t from = part * kPartBytes;
        digests[part] = crypto::sha256(now.subspan(from, std::min<uint64_t>(kPartBytes, now.size() - from)));
      });
    for (std::thread& thread : hashing) thread.join();
    if (auto taken = each(at / kPartBytes, digests); !taken) {
      (void)stream.finish();  // the buffer goes
      return taken;
    }
  }
  return {};
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
  auto compare = [&](size_t first, std::span<const crypto::Digest> parts) -> Result<void> {
    for (size_t i = 0; i < parts.size(); ++i)
      if (parts[i] != weights_->loaded_[first + i])
        return fail(Code::kCorrupt, "the weights in GPU memory are not what was loaded any more");
    looked_at_ = std::min<uint64_t>(weights_->bytes(), (first + parts.size()) * kPartBytes);
    return {};
  };
  auto outcome = weights_->digest_parts(stop_, compare);
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

Result<void> GpuHost::healthy(std::span<const uint32_t> gpus) {
  TIE_TRY(const uint32_t first, gpu_of(0, gpus));
  TIE_TRY([[maybe_unused]] const auto opened, driver(first));
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
  TIE_TRY(LoadedWeights loaded, load_weights(opened, gguf, place));
  return GpuWeights::create(std::move(opened), std::move(loaded), gpu);
}

}  // namespace tie::owner
