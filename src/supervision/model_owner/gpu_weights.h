// Weights in GPU memory: read from the file once, lent to one runtime at a time by the driver's IPC handle, freed when
// no runtime holds them and the model was replaced. The driver gives no read-only view of such memory, so a runtime
// that was taken over could change it and so reach its successors. Against that stand fingerprints (SHA-256, a tree of
// them) that the CPU takes of what it packed from the file, before it is copied: once it has been copied, and before a
// loan that follows another, the GPU takes them of all of the memory, and they must be the same. Nothing is read back:
// the kernel runs in the owner's own context and writes its fingerprints to pinned memory of the owner, which no
// runtime sees. The first loan needs no further look, since nobody else has had the memory. What this does not do:
// within its own loan a runtime computes with whatever it wrote; and who can make the owner's kernels lie (the driver,
// the GPU) needs no weights. Called by ModelStore's loader and OwnerServer. Threads: any; locks of their own. A look
// runs on a thread of its own that begins and ends with the loan's object. Cost of a look: one reading of the weights
// by the GPU; whoever waits for it is told how far it is.
#pragma once
#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "inference/bones/cuda/device_weights.h"
#include "inference/bones/cuda/fingerprints.h"

namespace tie::owner {

class GpuWeights;

// One connection's hold on the weights: first the look, where one is due, then the loan. The look counts for this hold
// alone: whatever ran before may still have written while it went on, but the runtime that asks anew is started when
// its predecessor is dead. Threads: one at a time.
class GpuLoan {
 public:
  ~GpuLoan();  // ends the look, or the loan
  // True: lent from now on. False: at the deadline the look was not over. kCorrupt: the weights are not what was loaded
  // any more; the driver's errors.
  Result<bool> lent(Deadline deadline);
  uint64_t looked_at_bytes() const { return looked_at_; }
  const std::shared_ptr<GpuWeights>& weights() const { return weights_; }

 private:
  friend class GpuWeights;
  explicit GpuLoan(std::shared_ptr<GpuWeights> weights) : weights_(std::move(weights)) {}
  void look();

  const std::shared_ptr<GpuWeights> weights_;
  std::atomic<uint64_t> looked_at_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable over_;
  std::optional<Result<void>> outcome_;
  std::thread looking_;
};

class GpuWeights : public std::enable_shared_from_this<GpuWeights> {
 public:
  // Reads a GGUF file into the memory of the driver's GPU, whose number is `gpu`; `reader` is of the same GPU. Errors:
  // load_weights'; the driver's; kCorrupt: what arrived is not what was sent.
  static Result<std::shared_ptr<GpuWeights>> load(std::shared_ptr<bones::cuda::Driver> driver,
                                                  std::shared_ptr<bones::cuda::FingerprintReader> reader, ByteView gguf,
                                                  bones::RankPlace place = {}, uint32_t gpu = 0);
  ~GpuWeights();

  Bytes table() const { return table_.serialize(); }
  uint64_t bytes() const { return table_.bytes; }
  uint32_t context_tokens() const { return table_.config.context_length; }
  const bones::cuda::IpcHandle& handle() const { return handle_; }
  uint32_t gpu() const { return gpu_; }  // its number (bones/cuda/gpu_numbers.h)

  // For one connection, until the object that it returns is gone; begins the look where one is due. kNotReady: another
  // holds them.
  Result<std::shared_ptr<GpuLoan>> borrow();

 private:
  friend class GpuLoan;

  GpuWeights() = default;
  // Compares all of the memory; `looked_at` tells how far it is. kCancelled soon after `stop`.
  Result<void> compare(const std::atomic<bool>& stop, std::atomic<uint64_t>& looked_at) const;
  void mark_lent();

  std::shared_ptr<bones::cuda::Driver> driver_;
  bones::cuda::DeviceTable table_;
  bones::cuda::DeviceMemory memory_;
  bones::cuda::IpcHandle handle_{};
  uint32_t gpu_ = 0;
  std::vector<bones::cuda::Fingerprint> loaded_;  // of each part
  std::shared_ptr<bones::cuda::FingerprintReader> reader_;
  std::mutex mutex_;
  std::weak_ptr<GpuLoan> holder_;
  bool was_lent_ = false;  // since then somebody else may have written
};

struct GpuOptions {
  std::string kernels;  // the fat binary (bones/cuda/kernel_file.h); empty: the installed one
  std::string driver = "libcuda.so.1";
  std::string nvml = "libnvidia-ml.so.1";
};

// This machine's GPUs. The driver is opened for each, and its kernels are loaded, when it is first asked for; they
// stay.
class GpuHost {
 public:
  explicit GpuHost(GpuOptions options) : options_(std::move(options)) {}

  // Why no model should go to the GPU by itself: no driver, no kernels, no NVML, or a device that gpuhealthd's rules do
  // not call healthy. Asked anew each time. `gpus`: those that the model's record names; empty: none.
  Result<void> healthy(std::span<const uint32_t> gpus = {});
  // The shard of one rank into the memory of its GPU: the one that `gpus` names for it, else the usual one.
  Result<std::shared_ptr<GpuWeights>> load(ByteView gguf, bones::RankPlace place = {},
                                           std::span<const uint32_t> gpus = {});

 private:
  Result<std::shared_ptr<bones::cuda::Driver>> driver(uint32_t gpu);
  Result<std::shared_ptr<bones::cuda::FingerprintReader>> reader(uint32_t gpu);

  const GpuOptions options_;
  std::mutex mutex_;
  std::map<uint32_t, std::shared_ptr<bones::cuda::Driver>> drivers_;  // by the GPU's number
  std::map<uint32_t, std::shared_ptr<bones::cuda::FingerprintReader>> readers_;
};

}  // namespace tie::owner
