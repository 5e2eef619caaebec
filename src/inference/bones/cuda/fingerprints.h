// SHA-256 fingerprints of GPU memory, taken by the GPU (kernels/cuda/fingerprint.h): one for each part of 2 MiB. The
// kernel writes them to pinned memory, 1/65,536 of what it reads: nothing is copied to the CPU, and they never lie in
// memory of the GPU, which another process might see. Used by tie-model-owner, which compares them with those that it
// took of the weights before it copied them. Threads: any; one read at a time, the others wait.
#pragma once
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

#include "base/bytes.h"
#include "inference/bones/cuda/driver.h"
#include "inference/bones/cuda/launcher.h"
#include "inference/bones/kernels/cuda/fingerprint.h"

namespace tie::bones::cuda {

using Fingerprint = std::array<uint8_t, 32>;

class FingerprintReader {
 public:
  using EachRun = std::function<Result<void>(uint64_t first_part, std::span<const Fingerprint>)>;

  // `kernels`: the fat binary. Errors: the driver's.
  static Result<std::unique_ptr<FingerprintReader>> create(std::shared_ptr<Driver> driver,
                                                           std::span<const std::byte> kernels);

  // Of `bytes` (a multiple of 64) at `at`, in order, several parts at once; each error of `each` ends it. kCancelled
  // soon after `stop`.
  Result<void> read(DevicePtr at, uint64_t bytes, const std::atomic<bool>& stop, const EachRun& each);

 private:
  FingerprintReader() = default;

  std::mutex mutex_;
  std::shared_ptr<Driver> driver_;
  std::unique_ptr<Launcher> launcher_;
  PinnedMemory words_;
};

}  // namespace tie::bones::cuda
