// KV blocks that leave with one turn and come back with the next: the same text as computed, less to compute, and every
// failure a cold evaluation that harms nobody else.
#include <gtest/gtest.h>

#include <numeric>

#include "inference/engine/engine_core.h"
#include "inference/engine/testing/fake_model.h"
#include "inference/engine/testing/memory_transfer.h"

namespace tie::engine {
namespace {

using testing::CollectingSink;
using testing::FakeModel;
using testing::join;
using testing::MemoryExport;
using testing::MemoryImport;
using testing::pattern;

constexpr uint32_t kTokens = 16;
constexpr size_t kBlockBytes = 16 * 4 * 2 * 2;

struct Bench {
  explicit Bench(size_t n_blocks = 300) {
    EngineOptions options;
    options.block_tokens = kTokens;
    options.kv_bytes = n_blocks * kBlockBytes;
    options.target_step_us = 0;
    core = *EngineCore::create(model, testing::fake_table(), std::move(options));
  }
  ~Bench() {
    EXPECT_EQ(core->kv().free_blocks(), core->kv().n_blocks()) << "blocks are lost";
    for (auto& c : model.complaints) ADD_FAILURE() << c;
  }
  std::shared_ptr<CollectingSink> add(std::vector<int32_t> prompt, uint32_t max_tokens,
                                      std::shared_ptr<KvImport> import = nullptr,
                                      std::shared_ptr<KvExport> out = nullptr, uint32_t n = 1) {
    auto sink = std::make_shared<CollectingSink>();
    RequestSpec spec{.prompt = std::move(prompt),
                     .sampling = {.temperature = n > 1 ? 1.0f : 0.0f,
                                  .seed = 5,
                                  .n = n,
                                  .max_tokens = max_tokens,
                                  .ignore_eos = true},
                     .sink = sink,
                     .kv_import = std::move(import),
                     .kv_export = std::move(out)};
    auto request = core->prepare(std::move(spec));
    EXPECT_TRUE(request) << request.error().message;
    handle = (*request)->handle;
    EXPECT_TRUE(core->add(std::move(*request)));
    return sink;
  }
  std::shared_ptr<CollectingSink> run(std::vector<int32_t> prompt, uint32_t max_tokens,
                                      std::shared_ptr<KvImport> import = nullptr,
                                      std::shared_ptr<KvExport> out = nullptr, uint32_t n = 1) {
    auto sink = add(std::move(prompt), max_tokens, std::move(import), std::move(out), n);
    EXPECT_TRUE(testing::run_to_end(*core));
    return sink;
  }
  FakeModel model{{.context = 1024}};
  std::unique_ptr<EngineCore> core;
  std::shared_ptr<RequestHandle> handle;
};

std::vector<int32_t> cold(const std::vector<int32_t>& prompt, uint32_t max_tokens) {
  Bench b;
  return b.run(prompt, max_tokens)->samples[0].tokens;
}

// One turn, and what it left behind.
struct Turn {
  std::vector<int32_t> tokens;  // prompt and answer
  std::shared_ptr<MemoryExport> kept = std::make_shared<MemoryExport>();
};
Turn first_turn(size_t n_prompt = 100, uint32_t n_answer = 30) {
  Bench b;
  Turn turn;
  auto prompt = pattern(n_prompt, 1);
  auto sink = b.run(prompt, n_answer, nullptr, turn.kept);
  turn.tokens = join(prompt, sink->samples[0].tokens);
  return turn;
}

TEST(KvTransfer, ATurnLeavesItsWholeBlocks) {
  Turn turn = first_turn(100, 30);  // 130 tokens, the last of which was never computed: eight blocks
  EXPECT_TRUE(turn.kept->finished);
  EXPECT_EQ(turn.kept->promised, 8u);
  EXPECT_EQ(turn.kept->blocks.size(), 8u);
}

TEST(KvTransfer, TheNextTurnTakesThemAndComputesOnlyTheRest) {
  Turn turn = first_turn();
  Bench b;
  auto prompt = join(turn.tokens, pattern(20, 4));
  auto sink = b.run(prompt, 12, std::make_shared<MemoryImport>(turn.kept->blocks));
  EXPECT_EQ(sink->samples[0].tokens, cold(prompt, 12));
  EXPECT_EQ(sink->usage.imported_tokens, 128u);
  EXPECT_FALSE(sink->usage.import_refused);
  EXPECT_EQ(b.model.rows_computed, prompt.size() - 128 + 11);
}

TEST(KvTransfer, ThePromptsLastTokenIsAlwaysComputed) {
  Turn turn = first_turn();
  Bench b;
  std::vector<int32_t> prompt(turn.tokens.begin(), turn.tokens.begin() + 64);
  auto sink = b.run(prompt, 5, std::make_shared<MemoryImport>(turn.kept->blocks));
  EXPECT_EQ(sink->samples[0].tokens, cold(prompt, 5));
  EXPECT_EQ(sink->usage.imported_tokens, 48u);
}

TEST(KvTransfer, AnImportThatFailsAnywhereIsAColdEvaluation) {
  Turn turn = first_turn();
  auto prompt = join(turn.tokens, pattern(20, 4));
  for (int at : {0, 3, 7}) {
    Bench b;
    auto import = std::make_shared<MemoryImport>(turn.kept->blocks);
    import->fail_at = at;
    auto sink = b.run(prompt, 12, import);
    EXPECT_EQ(sink->samples[0].tokens, cold(prompt, 12)) << at;
    EXPECT_EQ(sink->usage.imported_tokens, 0u);
    EXPECT_TRUE(sink->usage.import_refused);
    EXPECT_EQ(b.run(prompt, 12)->samples[0].tokens, sink->samples[0].tokens) << "the next request is unharmed";
  }
}

TEST(KvTransfer, OnlyWhatWasAskedForIsCopiedOut) {
  Bench b;
  auto later = std::make_shared<MemoryExport>(3, 2);
  auto sink = b.run(pattern(100, 1), 30, nullptr, later);
  EXPECT_EQ(later->promised, 2u);
  EXPECT_EQ(sink->usage.exported_tokens, 32u);
  Turn turn = first_turn();
  EXPECT_EQ(later->blocks[0], turn.kept->blocks[3]);
  EXPECT_EQ(later->blocks[1], turn.kept->blocks[4]);
  auto beyond = std::make_shared<MemoryExport>(8);
  b.run(pattern(100, 1), 30, nullptr, beyond);
  EXPECT_TRUE(beyond->finished);
  EXPECT_EQ(beyond->promised, 0u);
}

TEST(KvTransfer, TheEndIsToldBeforeAnythingIsCopied) {
  Bench b;
  auto kept = std::make_shared<MemoryExport>();
  auto sink = b.add(pattern(40, 1), 3, nullptr, kept);
  for (int i = 0; i < 100 && !sink->ended; ++i) b.core->step(i);
  ASSERT_TRUE(sink->ended);
  EXPECT_EQ(sink->usage.exported_tokens, 32u);
  EXPECT_TRUE(kept->blocks.empty());
  EXPECT_EQ(b.core->kv().free_blocks(), b.core->kv().n_blocks() - 2) << "pinned until copied, and nothing else";
  EXPECT_TRUE(b.core->transfer(SIZE_MAX));
  EXPECT_TRUE(kept->finished);
  EXPECT_EQ(kept->blocks.size(), 2u);
  EXPECT_FALSE(b.core->transfer(SIZE_MAX));
}

TEST(KvTransfer, ACancelledRequestLeavesNothing) {
  Bench b;
  auto kept = std::make_shared<MemoryExport>();
  auto sink = b.add(pattern(40, 1), 500, nullptr, kept);
  for (int i = 0; i < 10; ++i) b.core->step(i);
  b.handle->cancelled = true;
  ASSERT_TRUE(testing::run_to_end(*b.core));
  EXPECT_TRUE(kept->abandoned);
  EXPECT_FALSE(kept->finished);
}

TEST(KvTransfer, AReceiverThatGoesAwayFreesTheBlocks) {
  Bench b;
  auto kept = std::make_shared<MemoryExport>();
  kept->fail_at = 2;
  b.run(pattern(100, 1), 30, nullptr, kept);
  EXPECT_TRUE(kept->abandoned);
}

TEST(KvTransfer, PinnedBlocksGiveWayInTimeWhenOthersNeedThem) {
  Bench b(12);
  auto kept = std::make_shared<MemoryExport>();
  auto first = b.add(pattern(100, 1), 30, nullptr, kept);
  auto second = b.add(pattern(150, 2), 20);
  ASSERT_TRUE(testing::run_to_end(*b.core));
  EXPECT_EQ(kept->promised, 8u);
  EXPECT_EQ(second->samples[0].tokens, cold(pattern(150, 2), 20));
}

TEST(KvTransfer, APreemptedImportIsReadAgainOrComputedAndTheTextStays) {
  Turn turn = first_turn();
  auto prompt = join(turn.tokens, pattern(20, 4));
  Bench b(14);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 4; ++i) sinks.push_back(b.add(prompt, 40, std::make_shared<MemoryImport>(turn.kept->blocks)));
  ASSERT_TRUE(testing::run_to_end(*b.core));
  for (auto& sink : sinks) EXPECT_EQ(sink->samples[0].tokens, cold(prompt, 40));
}

TEST(KvTransfer, ManyImportsTogetherAndSeveralSamplesOfOne) {
  Turn turn = first_turn();
  Bench b;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 10; ++i)
    sinks.push_back(b.add(join(turn.tokens, pattern(3 + i, i)), 10, std::make_shared<MemoryImport>(turn.kept->blocks)));
  auto several = b.add(join(turn.tokens, pattern(9, 30)), 10, std::make_shared<MemoryImport>(turn.kept->blocks),
                       std::make_shared<MemoryExport>(), 3);
  ASSERT_TRUE(testing::run_to_end(*b.core));
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(sinks[i]->samples[0].tokens, cold(join(turn.tokens, pattern(3 + i, i)), 10)) << i;
  Bench alone;
  auto computed = alone.run(join(turn.tokens, pattern(9, 30)), 10, nullptr, nullptr, 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(several->samples[i].tokens, computed->samples[i].tokens);
}

}  // namespace
}  // namespace tie::engine
