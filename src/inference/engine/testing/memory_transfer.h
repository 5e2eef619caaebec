// For tests: KV blocks of one turn in ordinary memory, in the places of the two kvxfer buffers.
#pragma once
#include <map>

#include "inference/engine/kv_transfer.h"

namespace tie::engine::testing {

class MemoryExport final : public KvExport {
 public:
  explicit MemoryExport(uint32_t first = 0, uint32_t most = UINT32_MAX) : first_(first), most_(most) {}
  uint32_t first_block() const override { return first_; }
  uint32_t max_blocks() const override { return most_; }
  Result<void> write(uint32_t index, std::span<const std::byte> block) override {
    if (static_cast<int>(index) == fail_at) return fail(Code::kCancelled, "the other side went away");
    blocks[index].assign(block.begin(), block.end());
    return {};
  }
  void finish(uint32_t count) override {
    finished = true;
    promised = count;
  }
  void abandon() override { abandoned = true; }

  std::map<uint32_t, std::vector<std::byte>> blocks;
  int fail_at = -1;
  bool finished = false, abandoned = false;
  uint32_t promised = 0;

 private:
  uint32_t first_, most_;
};

class MemoryImport final : public KvImport {
 public:
  explicit MemoryImport(std::map<uint32_t, std::vector<std::byte>> blocks) : blocks_(std::move(blocks)) {}
  uint32_t block_count() const override { return static_cast<uint32_t>(blocks_.size()); }
  Result<void> read(uint32_t index, std::span<std::byte> out) override {
    ++reads;
    if (static_cast<int>(index) == fail_at) return fail(Code::kCorrupt, "not what it should be");
    const auto& block = blocks_.at(index);
    if (block.size() != out.size()) return fail(Code::kCorrupt, "another size");
    std::copy(block.begin(), block.end(), out.begin());
    return {};
  }
  int fail_at = -1;
  int reads = 0;

 private:
  std::map<uint32_t, std::vector<std::byte>> blocks_;
};

}  // namespace tie::engine::testing
