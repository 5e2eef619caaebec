#include "inference/engine/kv_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/secret_bytes.h"

namespace tie::engine {

Result<KvBlockPool> KvBlockPool::create(const bones::KvLayout& layout, uint32_t n_blocks, std::span<std::byte> memory) {
  if (n_blocks == 0) return fail(Code::kBadRequest, "the KV memory is too small for a single block");
  KvBlockPool pool;
  const size_t bytes = size_t{n_blocks} * layout.block_bytes();
  if (memory.empty()) {
    void* own = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (own == MAP_FAILED) return fail_errno("reserving KV memory", errno);
    madvise(own, bytes, MADV_HUGEPAGE);
    pool.mapped_bytes_ = bytes;
    memory = {static_cast<std::byte*>(own), bytes};
  }
  if (bytes > memory.size()) return fail(Code::kTooLarge, "the blocks exceed the KV memory that the ranks share");
  madvise(memory.data(), bytes, MADV_DONTDUMP);
  pool.begin({memory.data(), n_blocks, layout});
  return pool;
}

Result<KvBlockPool> KvBlockPool::create_for(ForwardModel& model, const bones::KvLayout& layout, uint32_t n_blocks) {
  KvDevice* device = model.kv_device();
  if (!device) return create(layout, n_blocks, model.kv_memory());
  if (n_blocks == 0) return fail(Code::kBadRequest, "the KV memory is too small for a single block");
  TIE_CHECK_OK(device->reserve(layout, n_blocks));
  KvBlockPool pool;
  pool.device_ = device;
  pool.begin({nullptr, n_blocks, layout});
  return pool;
}

void KvBlockPool::begin(const bones::KvPool& view) {
  view_ = view;
  references_.resize(view.n_blocks);
  clean_.reserve(view.n_blocks);
  dirty_.reserve(view.n_blocks);
  for (uint32_t block = view.n_blocks; block-- > 0;) clean_.push_back(block);
}

std::span<std::byte> KvBlockPool::to_write(uint32_t block) {
  if (device_) return device_->staging();
  return {view_.block(block), view_.layout.block_bytes()};
}

Result<std::span<const std::byte>> KvBlockPool::to_read(uint32_t block) {
  if (!device_) return std::span<const std::byte>(view_.block(block), view_.layout.block_bytes());
  TIE_CHECK_OK(device_->get(block));
  return std::span<const std::byte>(device_->staging());
}

KvBlockPool::KvBlockPool(KvBlockPool&& other) noexcept
    : view_(std::exchange(other.view_, {})),
      device_(other.device_),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      references_(std::move(other.references_)),
      clean_(std::move(other.clean_)),
      dirty_(std::move(other.dirty_)) {}

KvBlockPool::~KvBlockPool() {
  if (mapped_bytes_ != 0) munmap(view_.base, mapped_bytes_);
}

// A device that fails makes the model lost: nothing reads the block again.
void KvBlockPool::zero(uint32_t block) {
  if (device_)
    (void)device_->zero(block);
  else
    secure_zero(view_.block(block), view_.layout.block_bytes());
}

std::optional<uint32_t> KvBlockPool::allocate() {
  uint32_t block;
  if (!clean_.empty()) {
    block = clean_.back();
    clean_.pop_back();
  } else if (!dirty_.empty()) {
    block = dirty_.back();
    dirty_.pop_back();
    zero(block);
  } else {
    return std::nullopt;
  }
  references_[block] = 1;
  return block;
}

void KvBlockPool::release(uint32_t block) {
  tie_check(references_[block] > 0, "a KV block is released once per reference");
  if (--references_[block] == 0) dirty_.push_back(block);
}

std::optional<uint32_t> KvBlockPool::copy(uint32_t block) {
  auto own = allocate();
  if (!own) return std::nullopt;
  if (device_)
    (void)device_->copy(*own, block);
  else
    std::memcpy(view_.block(*own), view_.block(block), view_.layout.block_bytes());
  release(block);
  return own;
}

bool KvBlockPool::zero_freed(size_t max_bytes) {
  size_t written = 0;
  while (!dirty_.empty() && written < max_bytes) {
    uint32_t block = dirty_.back();
    dirty_.pop_back();
    zero(block);
    clean_.push_back(block);
    written += view_.layout.block_bytes();
  }
  return dirty_.empty();
}

}  // namespace tie::engine
