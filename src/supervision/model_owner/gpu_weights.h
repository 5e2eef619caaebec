// Weights in GPU memory: read from the file once, lent to one runtime at a time by the driver's IPC handle, freed when
// no runtime holds them and the model was replaced. The driver gives no read-only view of such memory, so a runtime
// that was taken over could change it: every loan begins with a look at all of it (SHA-256 of each part against what
// was loaded). Called by ModelStore's loader and OwnerServer. Threads: any; locks of their own. Cost: the transfer and
// the hash of all weights at loading and at every loan.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "crypto/sha256.h"
#include "inference/bones/cuda/device_weights.h"

namespace tie::owner {

class GpuWeights {
 public:
  // Takes what was just loaded; reads it back for its digests.
  static Result<std::shared_ptr<GpuWeights>> create(std::shared_ptr<bones::cuda::Driver> driver,
                                                    bones::cuda::LoadedWeights loaded);
  ~GpuWeights();

  Bytes table() const { return table_.serialize(); }
  uint64_t bytes() const { return table_.bytes; }
  uint32_t context_tokens() const { return table_.config.context_length; }
  const bones::cuda::IpcHandle& handle() const { return handle_; }

  // For one runtime, until the object that it returns is gone. kNotReady: another holds them; kCorrupt: they are not
  // what was loaded any more.
  Result<std::shared_ptr<void>> lend();

 private:
  GpuWeights() = default;
  Result<std::vector<crypto::Digest>> digests() const;

  std::shared_ptr<bones::cuda::Driver> driver_;
  bones::cuda::DeviceTable table_;
  bones::cuda::DeviceMemory memory_;
  bones::cuda::IpcHandle handle_{};
  std::vector<crypto::Digest> loaded_;  // of each part
  std::mutex mutex_;
  std::weak_ptr<void> holder_;
};

struct GpuOptions {
  std::string driver = "libcuda.so.1";
  std::string nvml = "libnvidia-ml.so.1";
};

// This machine's GPUs. The driver is opened for each when it is first asked for and stays open.
class GpuHost {
 public:
  explicit GpuHost(GpuOptions options) : options_(std::move(options)) {}

  // Why no model should go to the GPU by itself: no driver, no NVML, or a device that gpuhealthd's rules do not call
  // healthy. Asked anew each time.
  Result<void> healthy();
  // The shard of one rank into the memory of the GPU of that number.
  Result<std::shared_ptr<GpuWeights>> load(ByteView gguf, bones::RankPlace place = {}, uint32_t device = 0);

 private:
  Result<std::shared_ptr<bones::cuda::Driver>> driver(uint32_t device);

  const GpuOptions options_;
  std::mutex mutex_;
  std::map<uint32_t, std::shared_ptr<bones::cuda::Driver>> drivers_;  // by the GPU's number
};

}  // namespace tie::owner
