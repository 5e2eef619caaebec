// The paged cache in GPU memory, and whole blocks between it and this process: zeroed when freed, copied for
// copy-on-write, out and in for conversations and system prompts. Blocks cross through pinned memory of the driver's
// own making (cuMemHostAlloc): shared memory of another process is never registered with the driver, in confidential
// mode that would bounce anyway. On a stream of its own; every call returns when its work is done, so that nothing of
// it overlaps a forward pass. Threads: one at a time. Secrets: keys and values of users; the pinned block is
// overwritten with every use.
#pragma once
#include <cstddef>
#include <span>

#include "inference/bones/cuda/cuda_model.h"

namespace tie::bones::cuda {

class DeviceKv {
 public:
  // Zeroed. kTooLarge for no blocks; the driver's errors.
  static Result<DeviceKv> create(std::shared_ptr<Driver> driver, const KvLayout& layout, uint32_t n_blocks);
  DeviceKv(DeviceKv&& other) noexcept;
  DeviceKv& operator=(DeviceKv&&) = delete;
  ~DeviceKv();

  const DeviceKvPool& pool() const { return pool_; }
  // One block of pinned memory: what put() takes and get() fills.
  std::span<std::byte> staging();
  // kBadRequest for a block outside of the pool; the driver's errors.
  Result<void> put(uint32_t block);
  Result<void> get(uint32_t block);
  Result<void> zero(uint32_t block);
  Result<void> copy(uint32_t to, uint32_t from);

 private:
  DeviceKv() = default;
  Result<void> finish(int status, const char* doing);
  Result<DevicePtr> at(uint32_t block) const;

  std::shared_ptr<Driver> driver_;
  void* stream_ = nullptr;
  DeviceMemory memory_;
  PinnedMemory staging_;
  DeviceKvPool pool_;
};

}  // namespace tie::bones::cuda
