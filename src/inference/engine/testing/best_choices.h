// For tests of models that answer with the best ids of a row (ForwardModel::finds_best): random requests run once so
// and once over whole rows must give the same tokens.
#pragma once
#include <string>
#include <vector>

#include "inference/engine/testing/fake_model.h"

namespace tie::engine::testing {

// Hands everything on and counts rows of logits; `hide`: says that the model cannot find the best.
class RowCounter final : public ForwardModel {
 public:
  explicit RowCounter(ForwardModel& model, bool hide = false) : model_(model), hide_(hide) {}
  const bones::ModelConfig& config() const override { return model_.config(); }
  Result<bones::Logits> forward(const bones::Batch& batch, const bones::KvPool& kv) override;
  bool finds_best() const override { return !hide_ && model_.finds_best(); }
  std::span<std::byte> kv_memory() override { return model_.kv_memory(); }
  KvDevice* kv_device() override { return model_.kv_device(); }

  uint64_t best = 0, whole = 0, masked = 0;

 private:
  ForwardModel& model_;
  const bool hide_;
};

struct BestChoices {
  uint32_t requests = 10;
  uint32_t seed = 1;
  uint32_t longest_prompt = 60;
  uint32_t most_tokens = 24;
  uint32_t max_rows = 512, max_sequences = 64;  // of the model
  bool grammars = true;                         // when they are compiled depends on the clock, and with it the batches
  bones::ThreadPool* pool = nullptr;
};

// Expects (gtest) equal tokens and ends, and that rows came in both ways.
void expect_same_choices(ForwardModel& model, const TokenTable& table, const BestChoices& options);

// `n` tokens of one letter, the last two of which end a generation.
TokenTable letter_table(uint32_t n);

// All requests through one engine, to their end.
std::vector<std::shared_ptr<CollectingSink>> run_all(ForwardModel& model, const TokenTable& table,
                                                     const std::vector<RequestSpec>& specs, EngineOptions options);

}  // namespace tie::engine::testing
