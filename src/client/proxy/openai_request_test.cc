#include "client/proxy/openai_request.h"

#include <gtest/gtest.h>

namespace tie::client {
namespace {

constexpr const char* kHead = R"({"model":"m","messages":[{"role":"user","content":"hi"}])";

std::expected<OpenAiRequest, ApiError> chat(const std::string& more) {
  return read_openai_request(Endpoint::kChat, kHead + more + "}");
}
std::expected<OpenAiRequest, ApiError> text(const std::string& more) {
  return read_openai_request(Endpoint::kCompletions, R"({"model":"m")" + more + "}");
}

void expect_refused(const std::expected<OpenAiRequest, ApiError>& read, const std::string& param,
                    const std::string& code, int status = 400) {
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().param, param) << read.error().message;
  EXPECT_EQ(read.error().openai_code.empty() ? openai_code_of(read.error().code) : read.error().openai_code, code)
      << read.error().message;
  EXPECT_EQ(http_status_of(read.error()), status);
  EXPECT_FALSE(read.error().message.empty());
}

TEST(OpenAiRequest, TranslatesAPlainChat) {
  auto read = chat(
      R"(,"temperature":0,"max_tokens":7,"seed":-5,"stop":["a","bc"],"n":3,"logit_bias":{"12":-100},"stream":true,"stream_options":{"include_usage":true})");
  ASSERT_TRUE(read) << read.error().message;
  const v1::InferenceRequest& payload = read->payloads.at(0);
  EXPECT_EQ(payload.model(), "m");
  ASSERT_EQ(payload.conversation().messages_size(), 1);
  EXPECT_EQ(payload.conversation().messages(0).parts(0).text(), "hi");
  EXPECT_TRUE(payload.sampling().has_temperature());
  EXPECT_EQ(payload.sampling().temperature(), 0);
  EXPECT_EQ(payload.sampling().max_tokens(), 7);
  EXPECT_EQ(payload.sampling().seed(), uint64_t(-5));
  EXPECT_EQ(payload.sampling().stop_size(), 2);
  EXPECT_EQ(payload.sampling().n(), 3);
  EXPECT_EQ(payload.sampling().logit_bias().at(12), -100);
  EXPECT_TRUE(read->stream);
  EXPECT_TRUE(read->include_usage);
  EXPECT_EQ(read->samples, 3);
}

TEST(OpenAiRequest, AbsentParametersStayAbsent) {
  auto read = chat(R"(,"temperature":null,"stop":null,"logit_bias":null,"n":null,"max_tokens":null)");
  ASSERT_TRUE(read) << read.error().message;
  const v1::SamplingParams& sampling = read->payloads.at(0).sampling();
  EXPECT_FALSE(sampling.has_temperature());
  EXPECT_FALSE(sampling.has_top_p());
  EXPECT_FALSE(sampling.has_seed());
  EXPECT_FALSE(sampling.has_max_tokens());
  EXPECT_EQ(sampling.n(), 0);
}

TEST(OpenAiRequest, KeepsRolesPartsToolCallsAndNull) {
  auto read = read_openai_request(Endpoint::kChat, R"({"model":"m","messages":[
    {"role":"system","content":"be brief"},
    {"role":"user","content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AAEC","detail":"low"}}],"name":"ann"},
    {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},
    {"role":"tool","tool_call_id":"c1","content":"42"}],
    "tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"},"strict":true}}],
    "tool_choice":{"type":"function","function":{"name":"f"}},"parallel_tool_calls":false,
    "response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"type":"object"},"strict":true}}})");
  ASSERT_TRUE(read) << read.error().message;
  const v1::InferenceRequest& payload = read->payloads.at(0);
  const auto& messages = payload.conversation().messages();
  EXPECT_EQ(messages[1].parts(1).image(), std::string("\0\1\2", 3));
  EXPECT_EQ(messages[1].name(), "ann");
  EXPECT_TRUE(messages[2].content_is_null());
  EXPECT_EQ(messages[2].tool_calls(0).arguments_json(), "{\"x\":1}");
  EXPECT_EQ(messages[3].tool_call_id(), "c1");
  EXPECT_EQ(payload.tools(0).parameters_json(), R"({"type":"object"})");
  EXPECT_EQ(payload.tool_choice().kind(), v1::ToolChoice::NAMED);
  EXPECT_FALSE(payload.parallel_tool_calls());
  EXPECT_EQ(payload.response_format().kind(), v1::ResponseFormat::JSON_SCHEMA);
}

TEST(OpenAiRequest, RefusesWhatIsMissingOrUnknown) {
  expect_refused(read_openai_request(Endpoint::kChat, R"({"messages":[]})"), "model", "missing_required_parameter");
  expect_refused(read_openai_request(Endpoint::kChat, R"({"model":"m"})"), "messages", "missing_required_parameter");
  expect_refused(read_openai_request(Endpoint::kChat, R"({"model":"m","messages":[]})"), "messages", "invalid_value");
  expect_refused(read_openai_request(Endpoint::kChat, "[]"), "", "invalid_type");
  expect_refused(read_openai_request(Endpoint::kChat, "{"), "", "bad_request");
  expect_refused(chat(R"(,"tempreature":1)"), "tempreature", "unknown_parameter");
  expect_refused(chat(R"(,"prompt":"x")"), "prompt", "unknown_parameter");
  expect_refused(
      read_openai_request(Endpoint::kChat, R"({"model":"m","messages":[{"role":"user","content":"x","foo":1}]})"),
      "messages[0].foo", "unknown_parameter");
}

TEST(OpenAiRequest, RefusesAbsurdValues) {
  expect_refused(chat(R"(,"temperature":2.1)"), "temperature", "invalid_value");
  expect_refused(chat(R"(,"temperature":-0.1)"), "temperature", "invalid_value");
  expect_refused(chat(R"(,"temperature":"hot")"), "temperature", "invalid_type");
  expect_refused(chat(R"(,"top_p":1.5)"), "top_p", "invalid_value");
  expect_refused(chat(R"(,"n":5000000)"), "n", "invalid_value");
  expect_refused(chat(R"(,"n":0)"), "n", "invalid_value");
  expect_refused(chat(R"(,"max_tokens":0)"), "max_tokens", "invalid_value");
  expect_refused(chat(R"(,"max_tokens":18446744073709551615)"), "max_tokens", "invalid_value");
  expect_refused(chat(R"(,"max_tokens":1.5)"), "max_tokens", "invalid_type");
  expect_refused(chat(R"(,"logprobs":true,"top_logprobs":1000000000)"), "top_logprobs", "invalid_value");
  expect_refused(chat(R"(,"top_logprobs":3)"), "top_logprobs", "invalid_value");
  expect_refused(chat(R"(,"stop":"")"), "stop", "invalid_value");
  expect_refused(chat(R"(,"stop":["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"])"), "stop",
                 "invalid_value");
  expect_refused(chat(R"(,"logit_bias":{"x":1})"), "logit_bias", "invalid_value");
  expect_refused(chat(R"(,"logit_bias":{"1":101})"), "logit_bias", "invalid_value");
  expect_refused(chat(R"(,"stream_options":{"include_usage":true})"), "stream_options", "invalid_value");
  expect_refused(chat(R"(,"presence_penalty":1e300)"), "presence_penalty", "invalid_value");
  expect_refused(chat(R"(,"tool_choice":"required")"), "tool_choice", "invalid_value");
}

TEST(OpenAiRequest, NamesFeaturesThatItDoesNotHave) {
  expect_refused(chat(R"(,"functions":[{"name":"f"}])"), "functions", "unsupported_parameter");
  expect_refused(chat(R"(,"modalities":["audio"])"), "modalities", "unsupported_parameter");
  expect_refused(text(R"(,"prompt":"x","suffix":"y")"), "suffix", "unsupported_parameter");
  expect_refused(text(R"(,"prompt":"x","best_of":4)"), "best_of", "unsupported_parameter");
  expect_refused(
      read_openai_request(
          Endpoint::kChat,
          R"({"model":"m","messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{}}]}]})"),
      "messages[0].content[0].type", "unsupported_content");
  expect_refused(
      read_openai_request(
          Endpoint::kChat,
          R"({"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://example.org/a.png"}}]}]})"),
      "messages[0].content[0].image_url", "invalid_value");
}

TEST(OpenAiRequest, IgnoresWhatTheTableSays) {
  EXPECT_TRUE(chat(
      R"(,"user":"u","metadata":{"a":"b"},"store":true,"service_tier":"auto","modalities":["text"],"safety_identifier":"s")"));
}

TEST(OpenAiRequest, ReadsEveryFormOfPrompt) {
  EXPECT_EQ(text(R"(,"prompt":"x")")->payloads.at(0).raw_text(), "x");
  EXPECT_EQ(text(R"(,"prompt":["x","y"])")->payloads.size(), 2u);
  EXPECT_EQ(text(R"(,"prompt":[1,2,3])")->payloads.at(0).token_ids().ids_size(), 3);
  EXPECT_EQ(text(R"(,"prompt":[[1],[2,3]])")->payloads.at(1).token_ids().ids(1), 3);
  EXPECT_EQ(text(R"(,"prompt":"x")")->payloads.at(0).sampling().max_tokens(), 16);
  expect_refused(text(R"(,"prompt":[])"), "prompt", "invalid_value");
  expect_refused(text(R"(,"prompt":[1,"x"])"), "prompt", "invalid_value");
  expect_refused(text(R"(,"prompt":[-1])"), "prompt", "invalid_value");
  expect_refused(text(R"(,"prompt":{})"), "prompt", "invalid_value");
  expect_refused(text(""), "prompt", "missing_required_parameter");
}

TEST(OpenAiRequest, ReadsTheExtensionsByTheirUsualNames) {
  auto read = chat(
      R"(,"top_k":40,"min_p":0.1,"repetition_penalty":1.2,"guided_regex":"a+","chat_template_kwargs":{"enable_thinking":false})");
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->payloads[0].sampling().top_k(), 40);
  EXPECT_EQ(read->payloads[0].response_format().kind(), v1::ResponseFormat::REGEX);
  EXPECT_EQ(read->payloads[0].template_kwargs().at("enable_thinking"), "false");
  auto choice = chat(R"(,"structured_outputs":{"choice":["a","b"]})");
  ASSERT_TRUE(choice) << choice.error().message;
  EXPECT_EQ(choice->payloads[0].response_format().choices_size(), 2);
  expect_refused(chat(R"(,"guided_regex":"a","guided_choice":["a"])"), "guided_choice", "invalid_value");
  expect_refused(chat(R"(,"json":{})"), "json", "unknown_parameter");
}

}  // namespace
}  // namespace tie::client
