// The engine's view of a model: one forward pass per step. Implemented by bones (BonesModel below) and by the tests'
// deterministic fake. One thread at a time. The contract of bones/model.h holds for both, batch invariance included.
#pragma once
#include "inference/bones/model.h"

namespace tie::engine {

// KV blocks that this process cannot touch, because they lie in a GPU's memory. One block at a time goes through
// staging(). The engine's thread only; an error makes the model lost().
class KvDevice {
 public:
  virtual ~KvDevice() = default;
  // Called once before all else. Zeroed blocks 0 to n_blocks - 1.
  virtual Result<void> reserve(const bones::KvLayout& layout, uint32_t n_blocks) = 0;
  virtual std::span<std::byte> staging() = 0;    // one block
  virtual Result<void> put(uint32_t block) = 0;  // staging() to the block
  virtual Result<void> get(uint32_t block) = 0;  // the block to staging()
  virtual Result<void> zero(uint32_t block) = 0;
  virtual Result<void> copy(uint32_t to, uint32_t from) = 0;
};

class ForwardModel {
 public:
  virtual ~ForwardModel() = default;
  virtual const bones::ModelConfig& config() const = 0;
  virtual Result<bones::Logits> forward(const bones::Batch& batch, const bones::KvPool& kv) = 0;
  // Whether forward() heeds batch.best; if not, every row comes whole.
  virtual bool finds_best() const { return false; }
  virtual std::string_view kernels() const { return "none"; }
  // Where KV pools must lie, because other processes compute in them too; empty: anywhere. Zeroed at first.
  virtual std::span<std::byte> kv_memory() { return {}; }
  // Not null: the KV blocks lie there, the pool's view has no address, forward() knows where they are.
  virtual KvDevice* kv_device() { return nullptr; }
  // Said of blocks whose elements lie in another order than bones' own; a part of what makes two layouts different.
  virtual std::string_view kv_order() const { return {}; }
  // A part of the model is gone for good: every forward() fails, the process should end and be replaced.
  virtual bool lost() { return false; }
};

class BonesModel final : public ForwardModel {
 public:
  explicit BonesModel(bones::Model model) : model_(std::move(model)) {}
  const bones::ModelConfig& config() const override { return model_.config(); }
  Result<bones::Logits> forward(const bones::Batch& batch, const bones::KvPool& kv) override {
    return model_.forward(batch, kv);
  }
  bool finds_best() const override { return true; }
  std::string_view kernels() const override { return model_.kernels(); }

 private:
  bones::Model model_;
};

}  // namespace tie::engine
