#include "inference/engine/kv_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

namespace tie::engine {
namespace {

KvBlockPool small_pool(uint32_t n_blocks) {
  bones::KvLayout layout{.block_tokens = 16, .n_layers = 2, .n_kv_heads = 1, .head_dim = 8};
  auto pool = KvBlockPool::create(layout, n_blocks);
  EXPECT_TRUE(pool);
  return std::move(*pool);
}

bool is_zero(const KvBlockPool& pool, uint32_t block) {
  auto* bytes = pool.view().block(block);
  return std::all_of(bytes, bytes + pool.layout().block_bytes(), [](std::byte b) { return b == std::byte{0}; });
}

TEST(KvBlockPool, GivesEachBlockOnceAndThenNone) {
  auto pool = small_pool(5);
  std::set<uint32_t> seen;
  while (auto block = pool.allocate()) seen.insert(*block);
  EXPECT_EQ(seen.size(), 5u);
  EXPECT_EQ(pool.free_blocks(), 0u);
}

TEST(KvBlockPool, AFreedBlockIsZeroBeforeItIsUsedAgain) {
  auto pool = small_pool(1);
  uint32_t block = *pool.allocate();
  std::memset(pool.view().block(block), 0xAB, pool.layout().block_bytes());
  pool.release(block);
  EXPECT_EQ(*pool.allocate(), block);
  EXPECT_TRUE(is_zero(pool, block));
}

TEST(KvBlockPool, SettlingOverwritesEveryFreedBlock) {
  auto pool = small_pool(3);
  for (int i = 0; i < 3; ++i) std::memset(pool.view().block(*pool.allocate()), 0xAB, pool.layout().block_bytes());
  for (uint32_t b = 0; b < 3; ++b) pool.release(b);
  EXPECT_FALSE(pool.zero_freed(1));
  EXPECT_TRUE(pool.zero_freed(SIZE_MAX));
  for (uint32_t b = 0; b < 3; ++b) EXPECT_TRUE(is_zero(pool, b));
}

TEST(KvBlockPool, CopyGivesAPrivateBlockWithTheSameContent) {
  auto pool = small_pool(2);
  uint32_t block = *pool.allocate();
  std::memset(pool.view().block(block), 0x11, pool.layout().block_bytes());
  pool.share(block);
  EXPECT_TRUE(pool.shared(block));
  uint32_t own = *pool.copy(block);
  EXPECT_NE(own, block);
  EXPECT_FALSE(pool.shared(block));
  EXPECT_EQ(std::memcmp(pool.view().block(own), pool.view().block(block), pool.layout().block_bytes()), 0);
  pool.share(block);
  EXPECT_FALSE(pool.copy(block));  // none free: the reference is kept
  EXPECT_TRUE(pool.shared(block));
}

// Blocks that the pool cannot touch: memory behind one staging block.
class FakeDevice final : public KvDevice {
 public:
  Result<void> reserve(const bones::KvLayout& layout, uint32_t n_blocks) override {
    blocks.assign(n_blocks, std::vector<std::byte>(layout.block_bytes()));
    stage.resize(layout.block_bytes());
    return {};
  }
  std::span<std::byte> staging() override { return stage; }
  Result<void> put(uint32_t block) override {
    if (broken) return fail(Code::kIo, "broken");
    blocks.at(block) = stage;
    return {};
  }
  Result<void> get(uint32_t block) override {
    if (broken) return fail(Code::kIo, "broken");
    stage = blocks.at(block);
    return {};
  }
  Result<void> zero(uint32_t block) override {
    blocks.at(block).assign(stage.size(), std::byte{0});
    return {};
  }
  Result<void> copy(uint32_t to, uint32_t from) override {
    blocks.at(to) = blocks.at(from);
    return {};
  }
  std::vector<std::vector<std::byte>> blocks;
  std::vector<std::byte> stage;
  bool broken = false;
};

class DeviceModel final : public ForwardModel {
 public:
  const bones::ModelConfig& config() const override { return config_; }
  Result<bones::Logits> forward(const bones::Batch&, const bones::KvPool&) override { return bones::Logits{}; }
  KvDevice* kv_device() override { return &device; }
  FakeDevice device;

 private:
  bones::ModelConfig config_;
};

TEST(KvBlockPool, BlocksOfADeviceCrossThroughItsStagingMemory) {
  DeviceModel model;
  bones::KvLayout layout{.block_tokens = 16, .n_layers = 2, .n_kv_heads = 1, .head_dim = 8};
  auto pool = KvBlockPool::create_for(model, layout, 2);
  ASSERT_TRUE(pool);
  const uint32_t block = *pool->allocate();
  auto bytes = pool->to_write(block);
  std::fill(bytes.begin(), bytes.end(), std::byte{0x5A});
  ASSERT_TRUE(pool->written(block));
  pool->share(block);
  const uint32_t own = *pool->copy(block);
  auto copied = pool->to_read(own);
  ASSERT_TRUE(copied);
  EXPECT_EQ(copied->size(), layout.block_bytes());
  EXPECT_EQ((*copied)[7], std::byte{0x5A});
  pool->release(own);
  EXPECT_TRUE(pool->zero_freed(SIZE_MAX));
  EXPECT_EQ(model.device.blocks[own][7], std::byte{0});
  EXPECT_EQ(model.device.blocks[block][7], std::byte{0x5A});
  model.device.broken = true;
  EXPECT_FALSE(pool->to_read(block));
  EXPECT_FALSE(pool->written(block));
  EXPECT_FALSE(KvBlockPool::create_for(model, layout, 0));
}

}  // namespace
}  // namespace tie::engine
