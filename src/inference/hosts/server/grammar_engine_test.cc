// The engine under real grammars: a random tiny model must still write what the grammar says, alone and in a batch, for
// each sample.
#include "inference/hosts/server/grammar_engine.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "inference/bones/testing/tiny_model.h"
#include "inference/bones/weights_image.h"
#include "inference/engine/engine_core.h"
#include "inference/engine/testing/fake_model.h"
#include "inference/hosts/server/vocab_table.h"
#include "text/model_assets.h"

namespace tie::runtime_host {
namespace {

using engine::testing::CollectingSink;

class Grammars : public ::testing::Test {
 protected:
  void SetUp() override {
    gguf_ = bones::testing::tiny_model({.context_length = 2048});
    image_ = *bones::OwnedImage::from_gguf(gguf_);
    auto file = model_files::Gguf::parse(gguf_);
    vocab_image_ = *text::compile_vocab_image(*file);
    vocab_ = *text::Vocab::open(vocab_image_);
    pool_ = std::make_unique<bones::ThreadPool>(bones::ThreadPoolOptions{.n_threads = 2});
    model_ = std::make_unique<engine::BonesModel>(*bones::Model::attach(image_.bytes(), {.pool = pool_.get()}));
    grammars_ = std::make_unique<GrammarEngine>(vocab_);
    core_ = new_core(engine::SchedulerLimits{}.max_draft_sequences);
  }

  std::unique_ptr<engine::EngineCore> new_core(uint32_t max_draft_sequences) {
    engine::EngineOptions options;
    options.limits.max_draft_sequences = max_draft_sequences;
    options.kv_bytes = size_t{8} << 20;
    options.grammars = grammars_.get();
    options.pool = pool_.get();
    return *engine::EngineCore::create(*model_, *token_table(vocab_), std::move(options));
  }

  std::shared_ptr<CollectingSink> start(std::string grammar, engine::SamplingOptions sampling) {
    auto sink = std::make_shared<CollectingSink>();
    auto request = core_->prepare(
        {.prompt = {65, 66, 67}, .sampling = std::move(sampling), .grammar = std::move(grammar), .sink = sink});
    EXPECT_TRUE(request) << request.error().message;
    EXPECT_TRUE(core_->add(std::move(*request)));
    return sink;
  }

  Bytes gguf_, vocab_image_;
  bones::OwnedImage image_;
  text::Vocab vocab_;
  std::unique_ptr<bones::ThreadPool> pool_;
  std::unique_ptr<engine::BonesModel> model_;
  std::unique_ptr<GrammarEngine> grammars_;
  std::unique_ptr<engine::EngineCore> core_;
};

const char* const kSchema =
    R"({"grammars":[{"json_schema":{"type":"object","properties":{"name":{"type":"string","maxLength":8},"n":{"type":"integer","minimum":3,"maximum":9},)"
    R"("tags":{"type":"array","items":{"enum":["x","y"]},"minItems":1,"maxItems":3}},"required":["name","n","tags"],"additionalProperties":false}}]})";

TEST_F(Grammars, EverySampleIsWhatTheSchemaSays) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (uint64_t seed = 0; seed < 6; ++seed)
    sinks.push_back(start(kSchema, {.temperature = seed % 2 ? 1.0f : 0.0f, .seed = seed, .n = 3, .max_tokens = 400}));
  ASSERT_TRUE(engine::testing::run_to_end(*core_, 1'000'000));
  for (auto& sink : sinks)
    for (uint32_t i = 0; i < 3; ++i) {
      ASSERT_FALSE(sink->error) << sink->error->message;
      if (sink->samples[i].finish == engine::Finish::kLength)
        continue;  // white space may go on for long in a random model
      auto json = nlohmann::json::parse(sink->text(i, core_->table()), nullptr, false);
      ASSERT_FALSE(json.is_discarded()) << sink->text(i, core_->table());
      EXPECT_LE(json["name"].get<std::string>().size(), 32u);
      EXPECT_TRUE(json["n"] >= 3 && json["n"] <= 9);
      EXPECT_TRUE(json["tags"].size() >= 1 && json["tags"].size() <= 3);
    }
}

TEST_F(Grammars, AFixedTextEndsByItself) {
  auto sink = start("start: \"yes\" | \"no\"", {.max_tokens = 50});
  ASSERT_TRUE(engine::testing::run_to_end(*core_, 1'000'000));
  std::string text = sink->text(0, core_->table());
  EXPECT_TRUE(text == "yes" || text == "no") << text;
  EXPECT_TRUE(sink->samples[0].finish == engine::Finish::kGrammarEnd ||
              sink->samples[0].finish == engine::Finish::kStop);
}

TEST_F(Grammars, MaxTokensInsideEndsWithLength) {
  auto sink = start("start: /[a-z]{500}/", {.max_tokens = 20});
  ASSERT_TRUE(engine::testing::run_to_end(*core_, 1'000'000));
  EXPECT_EQ(sink->samples[0].finish, engine::Finish::kLength);
}

TEST_F(Grammars, SpeculationChangesNoText) {
  for (const char* grammar : {"start: /(one, two, three; ){20}/", "start: /([a-f]{2}-){40}[a-f]/", kSchema}) {
    std::string texts[2];
    uint32_t accepted[2];
    for (uint32_t drafts : {0u, 1u}) {
      core_ = new_core(drafts);
      auto sink = start(grammar, {.temperature = 0, .max_tokens = 150});
      ASSERT_TRUE(engine::testing::run_to_end(*core_, 1'000'000));
      ASSERT_FALSE(sink->error) << sink->error->message;
      texts[drafts] = sink->text(0, core_->table());
      accepted[drafts] = sink->usage.accepted_draft_tokens;
    }
    EXPECT_FALSE(texts[0].empty());
    EXPECT_EQ(texts[0], texts[1]);
    EXPECT_EQ(accepted[0], 0u);
    if (std::string_view(grammar).contains("one, two")) {  // the one text that repeats itself for sure
      EXPECT_GT(accepted[1], 20u);
    }
  }
}

TEST_F(Grammars, BadOnesAreBadRequestsAndTheEngineLives) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::string deep(60'000, '(');
  for (std::string bad :
       {std::string("start: /((/"), "start: /" + deep + "/",
        std::string(R"({"grammars":[{"json_schema":{"type":"string","format":"no-such"}}]})"), std::string("{")})
    sinks.push_back(start(bad, {.max_tokens = 5}));
  auto good = start("start: \"ok\"", {.max_tokens = 50});
  ASSERT_TRUE(engine::testing::run_to_end(*core_, 1'000'000));
  for (auto& sink : sinks) {
    ASSERT_TRUE(sink->error);
    EXPECT_EQ(sink->error->code, Code::kBadRequest) << sink->error->message;
  }
  EXPECT_EQ(good->text(0, core_->table()), "ok");
}

TEST_F(Grammars, CancellingDuringCompilationIsHarmless) {
  auto sink = std::make_shared<CollectingSink>();
  auto request = core_->prepare({.prompt = {65}, .grammar = std::string(kSchema), .sink = sink});
  auto handle = (*request)->handle;
  ASSERT_TRUE(core_->add(std::move(*request)));
  handle->cancelled = true;
  core_->step(0);
  EXPECT_TRUE(sink->ended);
  EXPECT_TRUE(core_->idle());
}

}  // namespace
}  // namespace tie::runtime_host
