// The engine over the real model library: a request's tokens and log-probabilities are bit-identical alone, in a crowd,
// cut into any chunks, after preemption and with drafts, on every kernel set of this machine.
#include <gtest/gtest.h>

#include <random>

#include "inference/bones/testing/tiny_model.h"
#include "inference/bones/weights_image.h"
#include "inference/engine/engine_core.h"
#include "inference/engine/testing/fake_model.h"
#include "inference/engine/testing/memory_transfer.h"

namespace tie::engine {
namespace {

using testing::CollectingSink;
constexpr uint32_t kTokens = 300;

TokenTable byte_table() {
  TokenTable table;
  for (uint32_t i = 0; i < kTokens; ++i) table.add(i < 256 ? std::string(1, static_cast<char>(i)) : std::string("x"));
  return table;
}

struct Variant {
  std::string architecture;
  std::string kernels;
};

class OverBones : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    bones::testing::TinyModelOptions options;
    options.architecture = GetParam().architecture;
    gguf_ = bones::testing::tiny_model(options);
    auto image = bones::OwnedImage::from_gguf(gguf_);
    ASSERT_TRUE(image) << image.error().message;
    image_ = std::move(*image);
  }
  std::unique_ptr<BonesModel> model(bones::ThreadPool& pool) {
    auto model = bones::Model::attach(image_.bytes(), {.pool = &pool, .kernels = GetParam().kernels});
    EXPECT_TRUE(model) << model.error().message;
    return std::make_unique<BonesModel>(std::move(*model));
  }
  Bytes gguf_;
  bones::OwnedImage image_;
};

RequestSpec random_request(std::mt19937& rng) {
  RequestSpec spec;
  uint32_t n = 1 + rng() % (rng() % 3 ? 40 : 150);
  for (uint32_t i = 0; i < n; ++i) spec.prompt.push_back(static_cast<int32_t>(rng() % kTokens));
  spec.sampling = {.temperature = rng() % 2 ? 0.0f : 1.0f,
                   .top_p = 0.9f,
                   .seed = rng(),
                   .n = rng() % 4 ? 1u : 3u,
                   .max_tokens = 1 + rng() % 40,
                   .logprobs = true};
  return spec;
}

std::vector<std::shared_ptr<CollectingSink>> run(ForwardModel& model, const std::vector<RequestSpec>& specs,
                                                 EngineOptions options) {
  options.target_step_us = 0;
  options.block_tokens = 16;
  auto core = *EngineCore::create(model, byte_table(), std::move(options));
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (auto spec : specs) {
    sinks.push_back(std::make_shared<CollectingSink>());
    spec.sink = sinks.back();
    auto request = core->prepare(std::move(spec));
    EXPECT_TRUE(request) << request.error().message;
    EXPECT_TRUE(core->add(std::move(*request)));
    core->step(0);
  }
  EXPECT_TRUE(testing::run_to_end(*core));
  return sinks;
}

TEST_P(OverBones, TextAndLogprobsDoNotDependOnTheSchedule) {
  bones::ThreadPool pool({.n_threads = 2});
  auto forward = model(pool);
  std::mt19937 rng(3);
  std::vector<RequestSpec> specs;
  int n = GetParam().kernels == "reference" ? 4 : 14;  // the reference kernels are slow
  for (int i = 0; i < n; ++i) specs.push_back(random_request(rng));
  size_t block_bytes = bones::KvLayout::for_model(forward->config(), bones::KvType::kF16, 16)->block_bytes();
  std::vector<EngineOptions> schedules(3);
  schedules[0].kv_bytes = 400 * block_bytes;
  schedules[1].kv_bytes = 24 * block_bytes;  // preempts
  schedules[1].limits.max_rows = 24;
  schedules[2].kv_bytes = 400 * block_bytes;
  schedules[2].limits.max_rows = 61;
  schedules[2].pool = &pool;
  std::vector<std::shared_ptr<CollectingSink>> alone;
  for (auto& spec : specs) {
    EngineOptions options{.kv_bytes = 60 * block_bytes};
    options.limits.max_draft_sequences = 0;
    alone.push_back(run(*forward, {spec}, options)[0]);
  }
  for (auto& options : schedules) {
    auto together = run(*forward, specs, options);
    for (size_t i = 0; i < specs.size(); ++i)
      for (uint32_t s = 0; s < specs[i].sampling.n; ++s) {
        const auto &a = alone[i]->samples[s], &b = together[i]->samples[s];
        ASSERT_EQ(a.tokens, b.tokens) << i;
        for (size_t t = 0; t < a.logprobs.size(); ++t)
          ASSERT_EQ(a.logprobs[t].logprob, b.logprobs[t].logprob) << i << " " << t;
      }
  }
}

TEST_P(OverBones, AnImportedTurnGivesTheLogprobsOfAComputedOne) {
  bones::ThreadPool pool({.n_threads = 2});
  auto forward = model(pool);
  RequestSpec first;
  for (int32_t i = 0; i < 50; ++i) first.prompt.push_back(i * 37 % 300);
  first.sampling = {.temperature = 0, .max_tokens = 40, .ignore_eos = true};
  auto kept = std::make_shared<testing::MemoryExport>();
  first.kv_export = kept;
  auto told = run(*forward, {first}, {.kv_bytes = 1 << 22})[0];
  ASSERT_EQ(kept->blocks.size(), 5u);
  RequestSpec second;
  second.prompt = first.prompt;
  second.prompt.insert(second.prompt.end(), told->samples[0].tokens.begin(), told->samples[0].tokens.end());
  for (int32_t i = 0; i < 7; ++i) second.prompt.push_back(i + 100);
  second.sampling = {.temperature = 0, .max_tokens = 20, .ignore_eos = true, .logprobs = true};
  auto computed = run(*forward, {second}, {.kv_bytes = 1 << 22})[0];
  second.kv_import = std::make_shared<testing::MemoryImport>(kept->blocks);
  auto imported = run(*forward, {second}, {.kv_bytes = 1 << 22})[0];
  EXPECT_EQ(imported->usage.imported_tokens, 80u);
  ASSERT_EQ(imported->samples[0].tokens, computed->samples[0].tokens);
  for (size_t i = 0; i < computed->samples[0].logprobs.size(); ++i)
    ASSERT_EQ(imported->samples[0].logprobs[i].logprob, computed->samples[0].logprobs[i].logprob) << i;
}

std::vector<Variant> variants() {
  std::vector<Variant> out;
  for (auto kernels : bones::available_kernel_sets())
    for (const char* architecture : {"llama", "gemma3"}) out.push_back({architecture, std::string(kernels)});
  return out;
}
INSTANTIATE_TEST_SUITE_P(KernelSets, OverBones, ::testing::ValuesIn(variants()),
                         [](const auto& info) { return info.param.architecture + "_" + info.param.kernels; });

}  // namespace
}  // namespace tie::engine
