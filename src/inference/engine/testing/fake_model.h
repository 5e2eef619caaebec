// A model for tests of the engine: its logits are a hash of the tokens it finds *in the KV blocks* through the block
// table, so a wrong table, a lost copy-on-write, a block used twice or a stale position changes the text. Checks on the
// way that fresh blocks are zero and that no two sequences write one block.
#pragma once
#include <atomic>
#include <string>
#include <vector>

#include "inference/engine/engine_core.h"

namespace tie::engine::testing {

struct FakeModelOptions {
  uint32_t n_vocab = 72;  // the tokenizer has kFakeTokens of them, the rest is padding with the best logits of all
  uint32_t context = 256;
  uint32_t remembers = 0;  // the hash covers the last so many tokens; 0 = all
  bool best = false;       // finds the best ids of a row, and then gives nothing else of it
};

inline constexpr uint32_t kFakeTokens = 64;
inline constexpr int32_t kFakeEnd = 1, kFakeOtherEnd = 2;

class FakeModel final : public ForwardModel {
 public:
  explicit FakeModel(FakeModelOptions options = {});
  const bones::ModelConfig& config() const override { return config_; }
  Result<bones::Logits> forward(const bones::Batch& batch, const bones::KvPool& kv) override;
  bool finds_best() const override { return options_.best; }

  uint64_t rows_computed = 0;
  uint64_t passes = 0;
  size_t most_logit_rows = 0;  // of one pass
  bool fail_next = false;
  std::vector<std::string> complaints;  // broken promises of the engine

 private:
  struct Record;
  Record* record(const bones::SequenceSpan& span, uint32_t position, const bones::KvPool& kv) const;
  uint64_t hash_up_to(const bones::SequenceSpan& span, uint32_t position, const bones::KvPool& kv);

  bones::BestRows find_best(const bones::Batch& batch);

  FakeModelOptions options_;
  bones::ModelConfig config_;
  std::vector<float> logits_;
  std::vector<Candidate> best_;
  std::vector<uint32_t> best_counts_;
};

// kFakeTokens tokens: id i is a letter, some are two or three letters, ids 0 to 2 have no text, 1 and 2 end a
// generation.
TokenTable fake_table();

// A prompt of n tokens that have text; another for another salt.
std::vector<int32_t> pattern(size_t n, int32_t salt);
std::vector<int32_t> join(std::vector<int32_t> a, const std::vector<int32_t>& b);

// Collects what one request was sent.
class CollectingSink final : public OutputSink {
 public:
  struct Sample {
    std::vector<int32_t> tokens;
    std::vector<TokenLogprobs> logprobs;
    uint32_t trim_bytes = 0;
    Finish finish = Finish::kNone;
    uint32_t outputs = 0;
  };
  void on_output(const Output& output) override;
  void on_end(const Usage& usage, const Error* error) override;
  bool has_room() const override { return room; }

  // The text of a sample as a receiver shows it.
  std::string text(uint32_t sample, const TokenTable& table) const;

  std::vector<Sample> samples = std::vector<Sample>(kMaxSamples);
  std::atomic<bool> ended{false};
  std::atomic<bool> room{true};
  std::vector<TokenLogprobs> prompt_logprobs;
  std::optional<Error> error;
  Usage usage;
  std::vector<std::string> complaints;  // broken promises about the order of calls
};

// Steps until everything has ended; false after `most_steps`.
bool run_to_end(EngineCore& core, uint32_t most_steps = 100'000);

}  // namespace tie::engine::testing
