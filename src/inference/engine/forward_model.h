// The engine's view of a model: one forward pass per step. Implemented by bones (BonesModel below) and by the tests'
// deterministic fake. One thread at a time. The contract of bones/model.h holds for both, batch invariance included.
#pragma once
#include "inference/bones/model.h"

namespace tie::engine {

class ForwardModel {
 public:
  virtual ~ForwardModel() = default;
  virtual const bones::ModelConfig& config() const = 0;
  virtual Result<bones::Logits> forward(const bones::Batch& batch, const bones::KvPool& kv) = 0;
  virtual std::string_view kernels() const { return "none"; }
  // Where KV pools must lie, because other processes compute in them too; empty: anywhere. Zeroed at first.
  virtual std::span<std::byte> kv_memory() { return {}; }
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
  std::string_view kernels() const override { return model_.kernels(); }

 private:
  bones::Model model_;
};

}  // namespace tie::engine
