#include "inference/bones/cuda/device_kv.h"

#include <utility>

#include "base/secret_bytes.h"

namespace tie::bones::cuda {
namespace {

constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING

}  // namespace

Result<DeviceKv> DeviceKv::create(std::shared_ptr<Driver> driver, const KvLayout& layout, uint32_t n_blocks) {
  if (n_blocks == 0) return fail(Code::kTooLarge, "the GPU's KV memory is too small for a single block");
  DeviceKv out;
  out.driver_ = driver;
  TIE_CHECK_OK(driver->check(driver->stream_create(&out.stream_, kNonBlocking), "making a stream"));
  const size_t bytes = size_t{n_blocks} * layout.block_bytes();
  TIE_TRY(out.memory_, DeviceMemory::allocate(driver, bytes));
  TIE_TRY(out.staging_, PinnedMemory::allocate(driver, layout.block_bytes()));
  out.pool_ = {out.memory_.at(), n_blocks, layout};
  TIE_CHECK_OK(out.finish(driver->mem_set_async(out.pool_.base, 0, bytes, out.stream_), "zeroing KV memory"));
  return out;
}

DeviceKv::DeviceKv(DeviceKv&& other) noexcept
    : driver_(std::move(other.driver_)),
      stream_(std::exchange(other.stream_, nullptr)),
      memory_(std::move(other.memory_)),
      staging_(std::move(other.staging_)),
      pool_(other.pool_) {}

DeviceKv::~DeviceKv() {
  if (!stream_) return;
  if (staging_.data()) secure_zero(staging_.data(), staging_.size());
  (void)driver_->use_on_this_thread();
  if (pool_.base)
    (void)finish(driver_->mem_set_async(pool_.base, 0, memory_.size(), stream_), "overwriting the KV memory");
  driver_->stream_destroy(stream_);
}

std::span<std::byte> DeviceKv::staging() {
  return {reinterpret_cast<std::byte*>(staging_.data()), staging_.size()};
}

Result<DevicePtr> DeviceKv::at(uint32_t block) const {
  if (block >= pool_.n_blocks) return fail(Code::kBadRequest, "a block number exceeds the KV pool");
  return pool_.base + uint64_t{block} * pool_.layout.block_bytes();
}

Result<void> DeviceKv::finish(int status, const char* doing) {
  TIE_CHECK_OK(driver_->check(status, doing));
  return driver_->check(driver_->stream_sync(stream_), doing);
}

Result<void> DeviceKv::put(uint32_t block) {
  TIE_TRY(const DevicePtr to, at(block));
  return finish(driver_->copy_in_async(to, staging_.data(), pool_.layout.block_bytes(), stream_),
                "copying a KV block to the GPU");
}

Result<void> DeviceKv::get(uint32_t block) {
  TIE_TRY(const DevicePtr from, at(block));
  return finish(driver_->copy_out_async(staging_.data(), from, pool_.layout.block_bytes(), stream_),
                "copying a KV block from the GPU");
}

Result<void> DeviceKv::zero(uint32_t block) {
  TIE_TRY(const DevicePtr to, at(block));
  return finish(driver_->mem_set_async(to, 0, pool_.layout.block_bytes(), stream_), "zeroing a KV block");
}

Result<void> DeviceKv::copy(uint32_t to, uint32_t from) {
  TIE_TRY(const DevicePtr target, at(to));
  TIE_TRY(const DevicePtr source, at(from));
  return finish(driver_->copy_within_async(target, source, pool_.layout.block_bytes(), stream_), "copying a KV block");
}

}  // namespace tie::bones::cuda
