// The paged KV memory: blocks with reference counts, copy-on-write for samples that share a prompt, zeroed before they
// can be used again. Owned and used by the engine's thread only. Memory: one anonymous mapping, huge pages where the
// kernel gives them, left out of core dumps; or a device's (KvDevice), whose blocks cross through its staging memory.
// Secrets: keys and values of users; a freed block is overwritten within the same step up to a budget, the rest in the
// next ones (or at once when idle).
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "inference/bones/kv_layout.h"
#include "inference/engine/forward_model.h"

namespace tie::engine {

class KvBlockPool {
 public:
  // In `memory` when it is not empty (the caller's, zeroed, 64-byte aligned), else in a mapping of its own. kBadRequest
  // for no blocks, kTooLarge when they exceed `memory`, kIo when the memory is refused.
  static Result<KvBlockPool> create(const bones::KvLayout& layout, uint32_t n_blocks, std::span<std::byte> memory = {});
  // The model's: its device, its shared memory, or a mapping.
  static Result<KvBlockPool> create_for(ForwardModel& model, const bones::KvLayout& layout, uint32_t n_blocks);
  KvBlockPool(KvBlockPool&& other) noexcept;
  KvBlockPool& operator=(KvBlockPool&&) = delete;
  ~KvBlockPool();

  // A zeroed block with one reference; nullopt when none is free.
  std::optional<uint32_t> allocate();
  void share(uint32_t block) { ++references_[block]; }
  void release(uint32_t block);
  bool shared(uint32_t block) const { return references_[block] > 1; }
  // Copy-on-write: gives up the caller's reference of `block` for a copy of its own. nullopt (nothing changed) when
  // none is free.
  std::optional<uint32_t> copy(uint32_t block);

  // Where to write one block's bytes; they are the block's once written() has returned well.
  std::span<std::byte> to_write(uint32_t block);
  Result<void> written(uint32_t block) { return device_ ? device_->put(block) : Result<void>(); }
  // One block's bytes, until the next call.
  Result<std::span<const std::byte>> to_read(uint32_t block);

  // Overwrites freed blocks until max_bytes have been written; true when none is left.
  bool zero_freed(size_t max_bytes);

  uint32_t n_blocks() const { return view_.n_blocks; }
  uint32_t free_blocks() const { return static_cast<uint32_t>(clean_.size() + dirty_.size()); }
  const bones::KvLayout& layout() const { return view_.layout; }
  const bones::KvPool& view() const { return view_; }

 private:
  KvBlockPool() = default;
  void begin(const bones::KvPool& view);
  void zero(uint32_t block);

  bones::KvPool view_;
  KvDevice* device_ = nullptr;
  size_t mapped_bytes_ = 0;  // 0: the memory is the caller's
  std::vector<uint32_t> references_;
  std::vector<uint32_t> clean_, dirty_;  // free blocks; capacity n_blocks each, so nothing is allocated later
};

}  // namespace tie::engine
