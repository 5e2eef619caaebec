#include "inference/bones/cuda/fingerprints.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace tie::bones::cuda {
namespace {

constexpr uint64_t kPartsAtOnce = 2048;  // 4 GiB: some milliseconds of a large GPU
constexpr size_t kBytes = sizeof(Fingerprint);

}  // namespace

Result<std::unique_ptr<FingerprintReader>> FingerprintReader::create(std::shared_ptr<Driver> driver,
                                                                     std::span<const std::byte> kernels) {
  TIE_CHECK_OK(driver->use_on_this_thread());
  std::unique_ptr<FingerprintReader> out(new FingerprintReader);
  TIE_TRY(out->launcher_, Launcher::create(driver, kernels));
  TIE_TRY(out->words_, PinnedMemory::allocate(driver, kPartsAtOnce * kBytes));
  out->driver_ = std::move(driver);
  return out;
}

Result<void> FingerprintReader::read(DevicePtr at, uint64_t bytes, const std::atomic<bool>& stop, const EachRun& each) {
  if (bytes % 64 != 0 || at % 16 != 0) return fail(Code::kBadRequest, "fingerprints are taken of whole blocks");
  std::lock_guard lock(mutex_);
  TIE_CHECK_OK(driver_->use_on_this_thread());
  const uint64_t parts = (bytes + kFingerprintPartBytes - 1) / kFingerprintPartBytes;
  std::vector<Fingerprint> found;
  for (uint64_t first = 0; first < parts; first += kPartsAtOnce) {
    if (stop) return fail(Code::kCancelled, "nobody waits for it any more");
    const uint64_t n = std::min(kPartsAtOnce, parts - first), from = first * kFingerprintPartBytes;
    const FingerprintArgs args{reinterpret_cast<const uint8_t*>(at + from),
                               std::min(n * kFingerprintPartBytes, bytes - from),
                               reinterpret_cast<uint32_t*>(words_.data())};
    std::memset(words_.data(), 0, n * kBytes);  // a kernel that does nothing is seen
    TIE_CHECK_OK(launcher_->launch("tie_fingerprint", args, {static_cast<uint32_t>(n), 1, 1}, kFingerprintThreads,
                                   kFingerprintSharedBytes));
    TIE_CHECK_OK(launcher_->wait());
    found.resize(n);
    for (uint64_t i = 0; i < n * kBytes; ++i)
      found[i / kBytes][i % kBytes] = words_.data()[i ^ 3];  // words, big-endian
    TIE_CHECK_OK(each(first, found));
  }
  return {};
}

}  // namespace tie::bones::cuda
