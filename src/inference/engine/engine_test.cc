// The engine with its thread: submission and cancellation from others, draining, stopping.
#include "inference/engine/engine.h"

#include <gtest/gtest.h>

#include <thread>

#include "inference/engine/testing/fake_model.h"

namespace tie::engine {
namespace {

using testing::CollectingSink;
using testing::FakeModel;

std::unique_ptr<EngineCore> make_core(FakeModel& model, uint32_t max_waiting = 1000) {
  EngineOptions options;
  options.block_tokens = 16;
  options.kv_bytes = 1 << 18;
  options.limits.max_waiting = max_waiting;
  return *EngineCore::create(model, testing::fake_table(), options);
}

RequestSpec spec_for(std::shared_ptr<CollectingSink> sink, int32_t first, uint32_t max_tokens) {
  RequestSpec spec{.prompt = {first, 4}, .sampling = {.temperature = 0, .max_tokens = max_tokens, .ignore_eos = true}};
  spec.sink = std::move(sink);
  return spec;
}

TEST(Engine, TakesRequestsFromManyThreads) {
  FakeModel model({.context = 128});
  std::atomic<uint32_t> steps{0};
  Engine engine(make_core(model), [&] { ++steps; });
  std::vector<std::shared_ptr<CollectingSink>> sinks(120);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (size_t i = t; i < sinks.size(); i += 4) {
        sinks[i] = std::make_shared<CollectingSink>();
        ASSERT_TRUE(engine.submit(spec_for(sinks[i], static_cast<int32_t>(3 + i % 50), 20)));
      }
    });
  for (auto& t : threads) t.join();
  ASSERT_TRUE(engine.wait_idle(Deadline::in_ms(20'000)));
  for (auto& sink : sinks) EXPECT_EQ(sink->samples[0].tokens.size(), 20u);
  EXPECT_GT(steps, 0u);
  EXPECT_TRUE(model.complaints.empty());
}

TEST(Engine, CancelsFromAnotherThread) {
  FakeModel model({.context = 100'000});
  Engine engine(make_core(model), {});
  auto sink = std::make_shared<CollectingSink>();
  auto handle = engine.submit(spec_for(sink, 5, 50'000));
  ASSERT_TRUE(handle);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  engine.cancel(**handle);
  ASSERT_TRUE(engine.wait_idle(Deadline::in_ms(5'000)));
  EXPECT_EQ(sink->samples[0].finish, Finish::kCancelled);
}

TEST(Engine, DrainingRefusesTheNewAndFinishesTheOld) {
  FakeModel model({.context = 4000});
  Engine engine(make_core(model), {});
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine.submit(spec_for(sink, 5, 300)));
  engine.stop_accepting();
  auto refused = engine.submit(spec_for(std::make_shared<CollectingSink>(), 5, 3));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kNotReady);
  ASSERT_TRUE(engine.wait_idle(Deadline::in_ms(10'000)));
  EXPECT_EQ(sink->samples[0].tokens.size(), 300u);
}

TEST(Engine, StoppingTellsEverySink) {
  FakeModel model({.context = 100'000});
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  {
    Engine engine(make_core(model), {});
    for (int i = 0; i < 10; ++i) {
      sinks.push_back(std::make_shared<CollectingSink>());
      ASSERT_TRUE(engine.submit(spec_for(sinks.back(), 5 + i, 2'000)));
    }
  }
  for (auto& sink : sinks) EXPECT_TRUE(sink->ended);
}

}  // namespace
}  // namespace tie::engine
