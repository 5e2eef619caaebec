#include "inference/engine/testing/best_choices.h"

#include <gtest/gtest.h>

#include <random>

namespace tie::engine::testing {
namespace {

// Allows a third of the tokens, another third after each token, and now and then nothing but an end.
class RandomConstraint final : public Constraint {
 public:
  explicit RandomConstraint(uint64_t state) : state_(state) {}
  Result<std::unique_ptr<Constraint>> clone() const override { return std::make_unique<RandomConstraint>(state_); }
  Result<void> accept(int32_t token) override {
    state_ = state_ * 6364136223846793005u + static_cast<uint32_t>(token) + 1442695040888963407u;
    return {};
  }
  Result<GrammarState> fill_mask(std::span<uint32_t> mask) override {
    std::mt19937 random(static_cast<uint32_t>(state_ >> 32));
    if (random() % 40 == 0) return GrammarState::kComplete;
    for (uint32_t& word : mask) word = static_cast<uint32_t>(random() & random()) | (random() % 8 ? 0u : 1u);
    return GrammarState::kOpen;
  }

 private:
  uint64_t state_;
};

class RandomGrammars final : public GrammarCompiler {
 public:
  Result<std::unique_ptr<Constraint>> compile(std::string_view grammar) override {
    return std::make_unique<RandomConstraint>(std::hash<std::string_view>()(grammar));
  }
};

SamplingOptions random_sampling(std::mt19937& random, uint32_t vocabulary) {
  auto one_in = [&](uint32_t n) { return random() % n == 0; };
  auto token = [&] { return static_cast<int32_t>(random() % vocabulary); };
  static constexpr uint32_t kTopK[] = {0, 1, 2, 7, 40, 63, 64, 65, 5000};
  SamplingOptions o;
  o.temperature = one_in(2) ? 0.0f : 0.2f + 0.1f * static_cast<float>(random() % 14);
  o.top_k = kTopK[random() % 9];
  if (one_in(3)) o.top_p = 0.3f + 0.1f * static_cast<float>(random() % 7);
  if (one_in(4)) o.min_p = 0.05f;
  if (one_in(8)) o.repetition_penalty = 1.3f;
  if (one_in(8)) o.presence_penalty = 0.5f;
  if (one_in(8)) o.logit_bias = {{token(), 3.0f}, {token(), -100.0f}};
  if (one_in(8)) o.logprobs = true;
  if (one_in(3)) o.min_tokens = random() % 8;
  if (one_in(3)) o.stop_token_ids = {token(), token(), token()};
  o.ignore_eos = one_in(3);
  o.seed = random();
  o.n = one_in(4) ? 3 : 1;
  return o;
}

}  // namespace

Result<bones::Logits> RowCounter::forward(const bones::Batch& batch, const bones::KvPool& kv) {
  EXPECT_TRUE(batch.best.empty() || finds_best());
  for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
    const bool few = !batch.best.empty() && batch.best[i].k > 0;
    ++(few ? best : whole);
    masked += few && batch.best[i].mask != nullptr;
  }
  return model_.forward(batch, kv);
}

TokenTable letter_table(uint32_t n) {
  TokenTable table;
  for (uint32_t i = 0; i < n; ++i) table.add(std::string(1, static_cast<char>('a' + i % 26)));
  (void)table.add_end_id(static_cast<int32_t>(n) - 2);
  (void)table.add_end_id(static_cast<int32_t>(n) - 1);
  return table;
}

std::vector<std::shared_ptr<CollectingSink>> run_all(ForwardModel& model, const TokenTable& table,
                                                     const std::vector<RequestSpec>& specs, EngineOptions options) {
  options.target_step_us = 0;
  options.block_tokens = 16;
  options.kv_bytes = size_t{4} << 20;
  auto core = EngineCore::create(model, table, std::move(options));
  EXPECT_TRUE(core) << core.error().message;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (auto spec : specs) {
    sinks.push_back(std::make_shared<CollectingSink>());
    spec.sink = sinks.back();
    auto request = (*core)->prepare(std::move(spec));
    EXPECT_TRUE(request) << request.error().message;
    EXPECT_TRUE((*core)->add(std::move(*request)));
    (*core)->step(0);
  }
  EXPECT_TRUE(run_to_end(**core));
  return sinks;
}

void expect_same_choices(ForwardModel& model, const TokenTable& table, const BestChoices& o) {
  std::mt19937 random(o.seed);
  std::vector<RequestSpec> specs(o.requests);
  for (auto& spec : specs) {
    spec.prompt.resize(1 + random() % o.longest_prompt);
    for (auto& token : spec.prompt) token = static_cast<int32_t>(random() % table.size());
    spec.sampling = random_sampling(random, table.size());
    spec.sampling.max_tokens = 1 + random() % o.most_tokens;
    if (o.grammars && random() % 3 == 0) spec.grammar = "grammar " + std::to_string(random());
  }
  RandomGrammars grammars;
  EngineOptions options;
  options.grammars = &grammars;
  options.pool = o.pool;
  options.limits.max_rows = o.max_rows;
  options.limits.max_sequences = o.max_sequences;
  RowCounter few(model), all(model, true);
  const auto found = run_all(few, table, specs, options), expected = run_all(all, table, specs, options);
  EXPECT_GT(few.best, 0u);
  EXPECT_GT(few.whole, 0u);
  EXPECT_EQ(all.best, 0u);
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(found[i]->error.has_value(), expected[i]->error.has_value()) << i;
    for (uint32_t s = 0; s < specs[i].sampling.n; ++s) {
      EXPECT_EQ(found[i]->samples[s].tokens, expected[i]->samples[s].tokens) << o.seed << " " << i << " " << s;
      EXPECT_EQ(found[i]->samples[s].finish, expected[i]->samples[s].finish) << o.seed << " " << i << " " << s;
    }
  }
}

}  // namespace tie::engine::testing
