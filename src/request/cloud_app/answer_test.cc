#include "request/cloud_app/answer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "request/cloud_app/testing.h"

namespace tie::request::app {
namespace {

struct AnswerTest : ::testing::Test {
  testing::TinyAssets assets;
  std::unique_ptr<ServedModel> model = assets.model();
  v1::SamplingParams sampling;
  std::vector<v1::InferenceEvent> events;

  Answer answer() {
    return Answer(*model, sampling, [this](const Bytes& padded) { events.push_back(testing::event_of(padded)); });
  }
  static RuntimeEvent said(std::string_view bytes, const std::string& finish = "", int sample = 0, uint32_t trim = 0) {
    RuntimeEvent event;
    event.tokens = testing::bytes_of(bytes);
    event.finish = finish;
    event.sample = sample;
    event.stop_trim_bytes = trim;
    return event;
  }
  std::string text(int sample = 0) const {
    std::string out;
    for (const auto& event : events)
      if (event.sample_index() == sample) out += event.text();
    return out;
  }
};

TEST_F(AnswerTest, DeltasConcatenateToTheWholeAndNeverCutACharacter) {
  const std::string whole = "naïve 👩‍🚀 你好 end";
  auto a = answer();
  for (char c : whole) ASSERT_TRUE(a.add(said(std::string_view(&c, 1))).has_value());
  ASSERT_TRUE(a.add(said("", "stop")).has_value());
  EXPECT_EQ(text(), whole);
  for (const auto& event : events) EXPECT_EQ(event.text().find("\xEF\xBF\xBD"), std::string::npos);
  EXPECT_EQ(events.back().finish_reason(), "stop");
  EXPECT_TRUE(a.complete());
}

TEST_F(AnswerTest, OutputThatEndsInsideACharacterIsStillValidText) {
  auto a = answer();
  ASSERT_TRUE(a.add(said("ok\xF0\x9F", "length")).has_value());
  EXPECT_EQ(text(), "ok\xEF\xBF\xBD");
  EXPECT_EQ(events.back().finish_reason(), "length");
}

struct ToolAnswerTest : AnswerTest {
  v1::InferenceRequest request = testing::chat("hi");
  void SetUp() override { request.add_tools()->set_name("f"); }
  std::string arguments() const {
    std::string out;
    for (const auto& event : events)
      for (const auto& call : event.tool_calls()) out += call.arguments_fragment();
    return out;
  }
};

TEST_F(ToolAnswerTest, CallsAreToldFromText) {
  auto a = answer();
  a.split_calls(request, CallsWanted::kPossible);
  for (char c : std::string("I call: <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"ä\"}}\n</tool_call>"))
    ASSERT_TRUE(a.add(said(std::string_view(&c, 1))).has_value());
  ASSERT_TRUE(a.add(said("", "grammar_end")).has_value());
  EXPECT_EQ(text(), "I call: ");
  EXPECT_EQ(arguments(), "{\"a\": \"ä\"}");
  EXPECT_EQ(events.back().finish_reason(), "tool_calls");
}

TEST_F(ToolAnswerTest, WordsAloneEndWithStop) {
  auto a = answer();
  a.split_calls(request, CallsWanted::kPossible);
  ASSERT_TRUE(a.add(said("no call <tool_")).has_value());
  ASSERT_TRUE(a.add(said("", "stop")).has_value());
  EXPECT_EQ(text(), "no call <tool_");
  EXPECT_EQ(events.back().finish_reason(), "stop");
}

TEST_F(ToolAnswerTest, ALimitInsideTheArgumentsIsALimit) {
  auto a = answer();
  a.split_calls(request, CallsWanted::kOnly);
  ASSERT_TRUE(a.add(said("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1", "length")).has_value());
  EXPECT_EQ(arguments(), "{\"a\": 1");
  EXPECT_EQ(events.back().finish_reason(), "length");
}

TEST_F(ToolAnswerTest, AMarkerThatIsAControlTokenIsSeen) {
  model->tool_syntax.open = "<|start|>";
  model->tool_syntax.open_token = testing::kStart;
  auto a = answer();
  a.split_calls(request, CallsWanted::kPossible);
  RuntimeEvent event = said("{\"name\": \"f\", \"arguments\": {}}", "stop");
  event.tokens.insert(event.tokens.begin(), testing::kStart);
  ASSERT_TRUE(a.add(event).has_value());
  EXPECT_EQ(text(), "");
  EXPECT_EQ(arguments(), "{}");
}

TEST_F(AnswerTest, AStopsTextIsCutAndNamed) {
  sampling.add_stop("STOP");
  sampling.add_stop("ST");
  auto a = answer();
  ASSERT_TRUE(a.add(said("keep this")).has_value());
  ASSERT_TRUE(a.add(said(" too.STOP and", "stop", 0, 8)).has_value());
  EXPECT_EQ(text(), "keep this too.");
  EXPECT_EQ(events.back().matched_stop(), "STOP");
}

TEST_F(AnswerTest, AStopRightAfterAnUnfinishedCharacterLeavesValidText) {
  sampling.add_stop("|");
  auto a = answer();
  ASSERT_TRUE(a.add(said("a\xE4\xBD")).has_value());
  ASSERT_TRUE(a.add(said("|", "stop", 0, 1)).has_value());
  EXPECT_EQ(text(), "a\xEF\xBF\xBD");
}

TEST_F(AnswerTest, LogprobsCarryTrueBytesStayFiniteAndEndBeforeTheStop) {
  sampling.set_logprobs(true);
  auto a = answer();
  RuntimeEvent event = said("\xE4!#", "stop", 0, 1);
  for (int32_t token : event.tokens) {
    auto* entry = event.logprobs.add_entries();
    entry->set_token_id(token);
    entry->set_logprob(-std::numeric_limits<float>::infinity());
    entry->add_top()->set_token_id('x');
  }
  ASSERT_TRUE(a.add(event).has_value());
  ASSERT_EQ(events.back().logprobs_size(), 2) << "the stop's token is not part of the answer";
  EXPECT_EQ(events.back().logprobs(0).token_bytes(), "\xE4");
  EXPECT_EQ(events.back().logprobs(0).logprob(), -9999);
  EXPECT_EQ(events.back().logprobs(0).top(0).token_bytes(), "x");
}

TEST_F(AnswerTest, SamplesAreKeptApartAndEachFinishesOnce) {
  sampling.set_n(2);
  auto a = answer();
  ASSERT_TRUE(a.add(said("\xE4\xBD", "", 0)).has_value());
  ASSERT_TRUE(a.add(said("B", "", 1)).has_value());
  ASSERT_TRUE(a.add(said("\xA0", "length", 0)).has_value());
  EXPECT_FALSE(a.complete());
  ASSERT_TRUE(a.add(said("", "grammar_end", 1)).has_value());
  EXPECT_TRUE(a.complete());
  EXPECT_EQ(text(0), "你");
  EXPECT_EQ(text(1), "B");
  EXPECT_EQ(events.back().finish_reason(), "stop");
  EXPECT_FALSE(a.add(said("more", "", 0)).has_value());
  EXPECT_FALSE(a.add(said("x", "", 2)).has_value());
  EXPECT_FALSE(a.add(said("x", "", -1)).has_value());
}

TEST_F(AnswerTest, ALongEchoIsSplitBetweenCharactersForEachSample) {
  sampling.set_n(2);
  std::string prompt;
  while (prompt.size() < 300'000) prompt += "你x";
  auto a = answer();
  a.echo(prompt);
  EXPECT_EQ(text(0), prompt);
  EXPECT_EQ(text(1), prompt);
  EXPECT_GT(events.size(), 8u);
}

struct ScoredAnswerTest : AnswerTest {
  static RuntimeEvent scores(std::string_view bytes) {
    RuntimeEvent event;
    for (int32_t id : testing::bytes_of(bytes)) {
      auto* entry = event.prompt_logprobs.add_entries();
      entry->set_token_id(id);
      entry->set_logprob(-static_cast<float>(id));
      entry->add_top()->set_token_id(id);
    }
    return event;
  }
  std::vector<v1::TokenLogprob> logprobs(int sample) const {
    std::vector<v1::TokenLogprob> out;
    for (const auto& event : events)
      if (event.sample_index() == sample) out.insert(out.end(), event.logprobs().begin(), event.logprobs().end());
    return out;
  }
};

TEST_F(ScoredAnswerTest, ThePromptsTokensComeFirstForEachSampleAndTheFirstHasNoProbability) {
  sampling.set_n(2);
  std::string prompt(100, 'a');
  prompt += "b";
  auto a = answer();
  a.echo(prompt);
  a.echo_logprobs(testing::bytes_of(prompt), false);
  ASSERT_TRUE(a.add(scores(prompt.substr(1, 40))).has_value());
  RuntimeEvent last = scores(prompt.substr(41));
  last.tokens = testing::bytes_of("x");
  last.logprobs.add_entries()->set_token_id(last.tokens[0]);
  last.finish = "length";
  ASSERT_TRUE(a.add(last).has_value());
  ASSERT_TRUE(a.add(said("y", "length", 1)).has_value());
  EXPECT_TRUE(a.complete());
  EXPECT_EQ(text(0), prompt + "x");
  for (int sample : {0, 1}) {
    auto got = logprobs(sample);
    ASSERT_EQ(got.size(), prompt.size() + (sample == 0 ? 1 : 0));
    EXPECT_TRUE(std::isnan(got[0].logprob()));
    EXPECT_EQ(got[0].top_size(), 0);
    for (size_t i = 0; i < prompt.size(); ++i) EXPECT_EQ(got[i].token_bytes(), prompt.substr(i, 1));
    for (size_t i = 1; i < prompt.size(); ++i) EXPECT_EQ(got[i].logprob(), -static_cast<float>(got[i].token_id()));
    EXPECT_EQ(got[100].top(0).token_bytes(), "b");
  }
  for (const auto& event : events) EXPECT_LE(event.logprobs_size(), 33);
}

TEST_F(ScoredAnswerTest, ATokenThatTheNodePutInFrontHasNoText) {
  auto a = answer();
  a.echo_logprobs(testing::bytes_of("\x01"
                                    "a"),
                  true);
  ASSERT_TRUE(a.add(scores("a")).has_value());
  EXPECT_EQ(logprobs(0).at(0).token_bytes(), "");
  EXPECT_EQ(logprobs(0).at(1).token_bytes(), "a");
}

TEST_F(ScoredAnswerTest, ARuntimeThatScoresAnotherPromptOrNotAllOfItIsRefused) {
  for (std::string_view wrong : {"x", "abc", "bcd"}) {
    auto a = answer();
    a.echo_logprobs(testing::bytes_of("abc"), false);
    EXPECT_EQ(a.add(scores(wrong)).error().code, Code::kInternal) << wrong;
  }
  auto early = answer();
  early.echo_logprobs(testing::bytes_of("abc"), false);
  ASSERT_TRUE(early.add(scores("b")).has_value());
  EXPECT_EQ(early.add(said("x")).error().code, Code::kInternal);
  auto unasked = answer();
  EXPECT_EQ(unasked.add(scores("a")).error().code, Code::kInternal);
}

TEST_F(AnswerTest, TheFirstEventNamesTheModelAndTheLastCarriesUsage) {
  auto a = answer();
  ASSERT_TRUE(a.add(said("a")).has_value());
  RuntimeEvent last = said("b", "stop");
  last.has_usage = true;
  last.usage.set_prompt_tokens(5);
  last.usage.set_completion_tokens(2);
  last.usage.set_prefix_tokens(3);
  ASSERT_TRUE(a.add(last).has_value());
  EXPECT_EQ(events[0].served_model_id(), "aabb");
  EXPECT_EQ(events[1].served_model_id(), "");
  EXPECT_EQ(events[1].usage().prompt_tokens(), 5u);
  EXPECT_EQ(events[1].usage().cached_tokens(), 3u);
}

TEST_F(AnswerTest, RandomBytesCutAnyWayGiveValidTextAndPaddedEvents) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    events.clear();
    auto a = answer();
    for (int i = 0; i < 20; ++i) {
      std::string bytes(random() % 9, '\0');
      for (char& c : bytes) c = static_cast<char>(random());
      ASSERT_TRUE(a.add(said(bytes)).has_value());  // event_of checks the bucket, protobuf the text
    }
    ASSERT_TRUE(a.add(said("", "stop")).has_value());
  }
}

}  // namespace
}  // namespace tie::request::app
