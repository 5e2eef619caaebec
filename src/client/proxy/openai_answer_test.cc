#include "client/proxy/openai_answer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace tie::client {
namespace {

OpenAiRequest asked(Endpoint endpoint, int samples = 1, bool logprobs = false, bool usage = false) {
  OpenAiRequest request;
  request.endpoint = endpoint;
  request.model = "m";
  request.payloads.resize(1);
  request.samples = samples;
  request.wants_logprobs = logprobs;
  request.include_usage = usage;
  return request;
}

v1::InferenceEvent says(const std::string& text, const std::string& finish = "", int sample = 0) {
  v1::InferenceEvent event;
  event.set_sample_index(sample);
  event.set_text(text);
  event.set_finish_reason(finish);
  return event;
}

const AnswerHead kHead{"id-1", 1700000000, "m", "0123456789ab"};

std::vector<nlohmann::json> chunks_of(const std::string& stream) {
  std::vector<nlohmann::json> out;
  for (size_t at = 0; at < stream.size();) {
    size_t end = stream.find("\n\n", at);
    std::string line = stream.substr(at, end - at);
    EXPECT_TRUE(line.starts_with("data: "));
    if (line != "data: [DONE]") out.push_back(nlohmann::json::parse(line.substr(6)));
    at = end + 2;
  }
  return out;
}

TEST(WholeAnswer, PutsDeltasTogetherByChoice) {
  WholeAnswer answer(asked(Endpoint::kChat, 2));
  ASSERT_TRUE(answer.add(0, says("he")));
  ASSERT_TRUE(answer.add(0, says("\"x\"\n", "stop", 1)));
  ASSERT_TRUE(answer.add(0, says("llo", "length")));
  auto json = nlohmann::json::parse(answer.json(kHead));
  EXPECT_EQ(json["choices"][0]["message"]["content"], "hello");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(json["choices"][1]["message"]["content"], "\"x\"\n");
  EXPECT_EQ(json["system_fingerprint"], "0123456789ab");
  EXPECT_TRUE(json["choices"][0]["logprobs"].is_null());
}

TEST(WholeAnswer, RefusesASampleThatWasNotAskedFor) {
  WholeAnswer answer(asked(Endpoint::kChat));
  EXPECT_EQ(answer.add(0, says("x", "", 1)).error().code, Code::kCorrupt);
  EXPECT_EQ(answer.add(0, says("x", "", -1)).error().code, Code::kCorrupt);
}

TEST(WholeAnswer, JoinsToolCallFragments) {
  WholeAnswer answer(asked(Endpoint::kChat));
  v1::InferenceEvent event;
  auto* call = event.add_tool_calls();
  call->set_id("c1");
  call->set_name("f");
  call->set_arguments_fragment("{\"a\"");
  ASSERT_TRUE(answer.add(0, event));
  event.Clear();
  event.add_tool_calls()->set_arguments_fragment(":1}");
  event.set_finish_reason("tool_calls");
  ASSERT_TRUE(answer.add(0, event));
  auto json = nlohmann::json::parse(answer.json(kHead));
  EXPECT_TRUE(json["choices"][0]["message"]["content"].is_null());
  EXPECT_EQ(json["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\":1}");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "tool_calls");
}

TEST(WholeAnswer, LogprobsCarryTrueBytesAndStayValidJson) {
  for (Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
    WholeAnswer answer(asked(endpoint, 1, true));
    v1::InferenceEvent event = says("x", "stop");
    auto* entry = event.add_logprobs();
    entry->set_token_bytes("\xf0\x9f");
    entry->set_logprob(-INFINITY);
    auto* top = entry->add_top();
    top->set_token_bytes("\x98\x80");
    top->set_logprob(NAN);
    ASSERT_TRUE(answer.add(0, event));
    auto json = nlohmann::json::parse(answer.json(kHead));
    auto logprobs = json["choices"][0]["logprobs"];
    if (endpoint == Endpoint::kChat) {
      EXPECT_EQ(logprobs["content"][0]["bytes"], (std::vector<int>{0xf0, 0x9f}));
      EXPECT_EQ(logprobs["content"][0]["logprob"], -9999.0);
    } else {
      EXPECT_EQ(logprobs["tokens"][0], "bytes:\\xf0\\x9f");
      EXPECT_EQ(logprobs["token_logprobs"][0], -9999.0);
    }
  }
}

TEST(WholeAnswer, AnEchoedPromptIsScoredAsOpenAiDoesIt) {
  WholeAnswer answer(asked(Endpoint::kCompletions, 1, true));
  v1::InferenceEvent event = says("ab\u00e9c", "length");
  auto add = [&](const char* bytes, float logprob, const char* best) {
    auto* entry = event.add_logprobs();
    entry->set_token_bytes(bytes);
    entry->set_logprob(logprob);
    if (best == nullptr) return;
    entry->add_top()->set_token_bytes(best);
    entry->mutable_top(0)->set_logprob(-0.25f);
  };
  add("ab", NAN, nullptr);
  add("\u00e9", -0.5f, "x");
  add("c", -0.25f, "c");
  ASSERT_TRUE(answer.add(0, event));
  auto logprobs = nlohmann::json::parse(answer.json(kHead))["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], (std::vector<std::string>{"ab", "\u00e9", "c"}));
  EXPECT_EQ(logprobs["token_logprobs"], nlohmann::json::parse("[null,-0.5,-0.25]"));
  // The likeliest, and the one that stands there.
  EXPECT_EQ(logprobs["top_logprobs"], nlohmann::json::parse(R"([null,{"x":-0.25,"\u00e9":-0.5},{"c":-0.25}])"));
  EXPECT_EQ(logprobs["text_offset"], (std::vector<int>{0, 2, 3}));
}

TEST(StreamedAnswer, TheFirstChunkOfEachChoiceHasTheRole) {
  StreamedAnswer answer(asked(Endpoint::kChat, 2, false, true), kHead);
  std::string out;
  ASSERT_TRUE(answer.add(0, says("a", "", 1), out));
  ASSERT_TRUE(answer.add(0, says("b", "stop", 0), out));
  ASSERT_TRUE(answer.add(0, says("c", "stop", 1), out));
  answer.end(out);
  auto chunks = chunks_of(out);
  ASSERT_EQ(chunks.size(), 6u);
  EXPECT_EQ(chunks[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(chunks[0]["choices"][0]["index"], 1);
  EXPECT_EQ(chunks[1]["choices"][0]["delta"], (nlohmann::json{{"content", "a"}}));
  EXPECT_EQ(chunks[2]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_TRUE(chunks[4]["usage"].is_null());
  EXPECT_TRUE(chunks[5]["choices"].empty());
  EXPECT_EQ(chunks[5]["usage"]["total_tokens"], 0);
  EXPECT_TRUE(out.ends_with("data: [DONE]\n\n"));
}

TEST(StreamedAnswer, WithoutIncludeUsageThereIsNone) {
  StreamedAnswer answer(asked(Endpoint::kChat), kHead);
  std::string out;
  ASSERT_TRUE(answer.add(0, says("a", "stop"), out));
  answer.end(out);
  EXPECT_EQ(out.find("usage"), std::string::npos);
}

TEST(StreamedAnswer, ACutStreamEndsWithAnErrorAndWithoutDone) {
  std::string out;
  StreamedAnswer::append_error({Code::kRuntimeLost, "cut", {}, "answer_cut", 0}, out);
  auto chunks = chunks_of(out);
  EXPECT_EQ(chunks.at(0)["error"]["code"], "answer_cut");
  EXPECT_EQ(out.find("[DONE]"), std::string::npos);
}

}  // namespace
}  // namespace tie::client
