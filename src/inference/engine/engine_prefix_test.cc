// The system-prompt prefix cache in the engine: the same text with and without, less to compute, nothing else shared,
// room given back under pressure.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "inference/engine/engine_core.h"
#include "inference/engine/prefix_warmup.h"
#include "inference/engine/testing/fake_model.h"

namespace tie::engine {
namespace {

using testing::CollectingSink;
using testing::FakeModel;
using testing::join;
using testing::pattern;

constexpr uint32_t kTokens = 16;
constexpr size_t kBlockBytes = 16 * 4 * 2 * 2;

// Blocks computed by the warm-up, kept in memory; stands for the sealed pool.
class MemorySource final : public PrefixSource {
 public:
  MemorySource(prefix::TrieMetadata plan, std::map<uint32_t, std::vector<std::byte>> blocks)
      : plan_(std::move(plan)), trie_(plan_), blocks_(std::move(blocks)) {}
  uint32_t block_count() const override { return plan_.block_count(); }
  std::vector<uint32_t> match(std::span<const int32_t> prompt) const override { return trie_.match(prompt); }
  Result<void> read(uint32_t block, std::span<std::byte> out) override {
    ++reads;
    if (corrupt == static_cast<int>(block)) return fail(Code::kCorrupt, "a byte has changed");
    std::copy(blocks_[block].begin(), blocks_[block].end(), out.begin());
    return {};
  }
  int reads = 0;
  int corrupt = -1;

 private:
  prefix::TrieMetadata plan_;
  prefix::PrefixTrie trie_;
  std::map<uint32_t, std::vector<std::byte>> blocks_;
};

MemorySource warm(std::vector<prefix::PromptEntry> prompts, uint32_t max_rows = 24) {
  FakeModel model({.context = 1024});
  auto plan = prefix::plan_blocks(std::move(prompts), kTokens, kBlockBytes);
  EXPECT_TRUE(plan) << plan.error().message;
  std::map<uint32_t, std::vector<std::byte>> blocks;
  auto layout = *bones::KvLayout::for_model(model.config(), bones::KvType::kF16, kTokens);
  auto done = compute_prefix_blocks(model, layout, *plan, max_rows,
                                    [&](uint32_t index, std::span<const std::byte> payload) -> Result<void> {
                                      blocks[index].assign(payload.begin(), payload.end());
                                      return {};
                                    });
  EXPECT_TRUE(done) << done.error().message;
  EXPECT_TRUE(model.complaints.empty()) << model.complaints.front();
  EXPECT_EQ(blocks.size(), plan->block_count());
  return MemorySource(*plan, std::move(blocks));
}

EngineOptions options_for_tests(PrefixSource* prefix, size_t n_blocks = 500) {
  EngineOptions options;
  options.block_tokens = kTokens;
  options.kv_bytes = n_blocks * kBlockBytes;
  options.target_step_us = 0;
  options.prefix = prefix;
  return options;
}

std::shared_ptr<CollectingSink> add(EngineCore& core, std::vector<int32_t> prompt, uint32_t max_tokens,
                                    uint32_t n = 1) {
  auto sink = std::make_shared<CollectingSink>();
  RequestSpec spec{
      .prompt = std::move(prompt),
      .sampling = {.temperature = n > 1 ? 1.0f : 0.0f, .seed = 5, .n = n, .max_tokens = max_tokens, .ignore_eos = true},
      .sink = sink};
  auto request = core.prepare(std::move(spec));
  EXPECT_TRUE(request) << request.error().message;
  EXPECT_TRUE(core.add(std::move(*request)));
  return sink;
}

// The text of one prompt alone without a cache.
std::vector<int32_t> cold(const std::vector<int32_t>& prompt, uint32_t max_tokens) {
  FakeModel model({.context = 1024});
  auto core = *EngineCore::create(model, testing::fake_table(), options_for_tests(nullptr));
  auto sink = add(*core, prompt, max_tokens);
  EXPECT_TRUE(testing::run_to_end(*core));
  return sink->samples[0].tokens;
}

TEST(PrefixCache, AHitGivesTheTextOfAMissAndComputesOnlyTheRest) {
  auto system = pattern(100, 1);  // six whole blocks and four tokens
  MemorySource source = warm({{"a", system, {}}, {"b", join(pattern(32, 1), pattern(40, 2)), {}}});
  FakeModel model({.context = 1024});
  auto core = *EngineCore::create(model, testing::fake_table(), options_for_tests(&source));
  auto prompt = join(system, pattern(9, 7));
  auto first = add(*core, prompt, 20);
  ASSERT_TRUE(testing::run_to_end(*core));
  EXPECT_EQ(first->samples[0].tokens, cold(prompt, 20));
  EXPECT_EQ(first->usage.prefix_tokens, 96u);
  EXPECT_EQ(model.rows_computed, prompt.size() - 96 + 19);
  int reads = source.reads;
  auto second = add(*core, join(system, pattern(3, 8)), 5);
  ASSERT_TRUE(testing::run_to_end(*core));
  EXPECT_EQ(second->samples[0].tokens, cold(join(system, pattern(3, 8)), 5));
  EXPECT_EQ(source.reads, reads) << "hot blocks are not read again";
  EXPECT_TRUE(model.complaints.empty()) << model.complaints.front();
}

TEST(PrefixCache, UserTokensNeverEnterIt) {
  MemorySource source = warm({{"a", pattern(32, 1), {}}});
  FakeModel model({.context = 1024});
  auto core = *EngineCore::create(model, testing::fake_table(), options_for_tests(&source));
  auto prompt = join(pattern(32, 1), pattern(64, 3));
  for (int i = 0; i < 3; ++i) {
    auto sink = add(*core, prompt, 4);
    ASSERT_TRUE(testing::run_to_end(*core));
    EXPECT_EQ(sink->usage.prefix_tokens, 32u) << "the same user text computes itself anew each time";
  }
  auto other = add(*core, pattern(80, 9), 4);
  ASSERT_TRUE(testing::run_to_end(*core));
  EXPECT_EQ(other->usage.prefix_tokens, 0u);
}

TEST(PrefixCache, ManySequencesAndSamplesShareTheBlocks) {
  auto system = pattern(64, 4);
  MemorySource source = warm({{"a", system, {}}});
  FakeModel model({.context = 1024});
  auto core = *EngineCore::create(model, testing::fake_table(), options_for_tests(&source));
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int32_t i = 0; i < 20; ++i) sinks.push_back(add(*core, join(system, pattern(5, i)), 10));
  auto several = add(*core, join(system, pattern(5, 30)), 10, 3);
  ASSERT_TRUE(testing::run_to_end(*core));
  EXPECT_TRUE(model.complaints.empty()) << model.complaints.front();
  for (int32_t i = 0; i < 20; ++i) EXPECT_EQ(sinks[i]->samples[0].tokens, cold(join(system, pattern(5, i)), 10)) << i;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(several->samples[i].tokens.size(), 10u);
  EXPECT_EQ(source.reads, 4);
  core->settle();
  EXPECT_EQ(core->kv().free_blocks(), core->kv().n_blocks() - 4) << "only the hot blocks stay";
}

TEST(PrefixCache, APromptThatIsScoredIsComputedWholeAndItsTextStays) {
  auto system = pattern(64, 4);
  MemorySource source = warm({{"a", system, {}}});
  FakeModel model({.context = 1024});
  auto core = *EngineCore::create(model, testing::fake_table(), options_for_tests(&source));
  auto prompt = join(system, pattern(9, 7));
  auto sink = std::make_shared<CollectingSink>();
  auto request = core->prepare(
      {.prompt = prompt,
       .sampling = {.temperature = 0, .max_tokens = 8, .ignore_eos = true, .logprobs = true, .prompt_logprobs = true},
       .sink = sink});
  ASSERT_TRUE(request) << request.error().message;
  ASSERT_TRUE(core->add(std::move(*request)));
  ASSERT_TRUE(testing::run_to_end(*core));
  ASSERT_EQ(sink->prompt_logprobs.size(), prompt.size() - 1) << "no row is skipped";
  for (size_t i = 1; i < prompt.size(); ++i) EXPECT_EQ(sink->prompt_logprobs[i - 1].token, prompt[i]);
  EXPECT_EQ(sink->usage.prefix_tokens, 0u);
  EXPECT_EQ(source.reads, 0);
  EXPECT_EQ(sink->samples[0].tokens, cold(prompt, 8));
}

TEST(PrefixCache, GivesWayWhenSequencesNeedTheRoom) {
  auto system = pattern(128, 4);
  MemorySource source = warm({{"a", system, {}}});
  FakeModel model({.context = 1024});
  auto core = *EngineCore::create(model, testing::fake_table(), options_for_tests(&source, 12));
  auto with = add(*core, join(system, pattern(5, 1)), 4);
  ASSERT_TRUE(testing::run_to_end(*core));
  EXPECT_EQ(with->usage.prefix_tokens, 128u);
  auto large = pattern(170, 9);  // eleven of the twelve blocks, with its output
  auto without = add(*core, large, 6);
  ASSERT_TRUE(testing::run_to_end(*core));
  EXPECT_EQ(without->samples[0].tokens, cold(large, 6));
  auto again = add(*core, join(system, pattern(5, 1)), 4);
  ASSERT_TRUE(testing::run_to_end(*core));
  EXPECT_EQ(again->samples[0].tokens, with->samples[0].tokens);
  EXPECT_TRUE(model.complaints.empty()) << model.complaints.front();
}

TEST(PrefixCache, ABlockThatFailsItsCheckIsComputedAndTheCacheIsGivenUp) {
  auto system = pattern(64, 4);
  MemorySource source = warm({{"a", system, {}}});
  source.corrupt = 2;
  FakeModel model({.context = 1024});
  auto core = *EngineCore::create(model, testing::fake_table(), options_for_tests(&source));
  auto prompt = join(system, pattern(5, 1));
  auto sink = add(*core, prompt, 8);
  ASSERT_TRUE(testing::run_to_end(*core));
  EXPECT_EQ(sink->samples[0].tokens, cold(prompt, 8));
  EXPECT_EQ(sink->usage.prefix_tokens, 32u) << "the blocks before it were sound";
  EXPECT_TRUE(core->prefix().failed());
  auto next = add(*core, prompt, 8);
  ASSERT_TRUE(testing::run_to_end(*core));
  EXPECT_EQ(next->samples[0].tokens, sink->samples[0].tokens);
  EXPECT_EQ(next->usage.prefix_tokens, 0u);
}

TEST(PrefixWarmup, RefusesAPlanThatDoesNotFitTheModel) {
  FakeModel model({.context = 64});
  auto layout = *bones::KvLayout::for_model(model.config(), bones::KvType::kF16, kTokens);
  auto write = [](uint32_t, std::span<const std::byte>) -> Result<void> { return {}; };
  auto too_long = prefix::plan_blocks({{"a", pattern(64, 1), {}}}, kTokens, kBlockBytes);
  EXPECT_EQ(compute_prefix_blocks(model, layout, *too_long, 32, write).error().code, Code::kBadRequest);
  auto other_block = prefix::plan_blocks({{"a", pattern(32, 1), {}}}, kTokens, kBlockBytes * 2);
  EXPECT_EQ(compute_prefix_blocks(model, layout, *other_block, 32, write).error().code, Code::kBadRequest);
}

}  // namespace
}  // namespace tie::engine
