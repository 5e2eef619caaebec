// The app over a real socket to its helper and a real gRPC connection to a scripted runtime.
#include "request/cloud_app/app.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "os/framed_message.h"
#include "request/cloud_app/delta_padding/delta_padding.h"
#include "request/cloud_app/testing.h"

namespace tie::request::app {
namespace {

using namespace testing;
using End = v1::FromApp::EndOfResponse;

struct AppTest : ::testing::Test {
  TinyAssets assets{{"tiny", "other"}, "", 1000};  // room for the words that explain tools
  os::Fd helper;
  std::thread app;
  std::atomic<bool> ended = false;
  Deadline deadline = Deadline::in_ms(10'000);
  std::vector<v1::InferenceEvent> events;

  void start() {
    auto sockets = os::socket_pair();
    helper = std::move(sockets->first);
    app = std::thread(
        [this, held = std::move(sockets->second), config = Config{assets.root, assets.root + "/runtime"}]() mutable {
          auto warm = App::warm_up(std::move(held), config);
          if (warm) (void)(*warm)->serve();
          ended = true;
        });
    v1::ToApp warmup;
    warmup.mutable_warmup();
    say(warmup);
  }
  void TearDown() override {
    helper.close();
    if (app.joinable()) app.join();
  }
  void say(const v1::ToApp& message) { (void)os::send_message(helper.get(), message, deadline); }
  Result<v1::FromApp> hear() {
    auto got = os::receive_message<v1::FromApp>(helper.get(), 2 << 20, deadline);
    if (!got) return std::unexpected(got.error());
    return std::move(got->message);
  }
  void ask(const v1::InferenceRequest& request) {
    ASSERT_TRUE(hear()->has_ready());
    v1::ToApp message;
    message.mutable_parameters()->set_request_id("0123");
    say(message);
    v1::BodyMessage body;
    *body.mutable_request() = request;
    Bytes bytes = pad_message(body.SerializeAsString());
    for (size_t at = 0; at < bytes.size(); at += 100) {
      size_t size = std::min<size_t>(100, bytes.size() - at);
      message.mutable_input()->set_data(bytes.data() + at, size);
      message.mutable_input()->set_final(at + size == bytes.size());
      say(message);
    }
  }
  // Reads to the end.
  End::Status answer() {
    for (;;) {
      auto message = hear();
      if (!message) return static_cast<End::Status>(-1);
      if (message->has_end()) return message->end().status();
      events.push_back(event_of(as_bytes(message->response().message())));
    }
  }
  std::string text() const {
    std::string out;
    for (const auto& event : events) out += event.text();
    return out;
  }
};

FakeRuntime::Script saying(const std::string& words) {
  return [words](const inference::ModelInferRequest&, FakeRuntime::Stream& stream, grpc::ServerContext&) {
    for (char c : words) stream.Write(response({static_cast<uint8_t>(c)}));
    auto last = response({}, "stop");
    make_final(last, 3, static_cast<uint32_t>(words.size()));
    stream.Write(last);
  };
}

TEST_F(AppTest, AnswersARequestWithPaddedEventsAndUsage) {
  FakeRuntime runtime(assets.socket(), saying("héllo"));
  start();
  ask(chat("hi"));
  EXPECT_EQ(answer(), End::OK);
  EXPECT_EQ(text(), "héllo");
  EXPECT_EQ(events.back().finish_reason(), "stop");
  EXPECT_EQ(events.back().usage().completion_tokens(), 6u);
  ASSERT_EQ(runtime.seen.size(), 1u);
  EXPECT_EQ(runtime.seen[0].model_name(), "tiny");
  EXPECT_EQ(runtime.seen[0].id(), "0123");
}

TEST_F(AppTest, StepsBackAfterItsLastWordUntilTheHelperHasGone) {
  FakeRuntime runtime(assets.socket(), saying("hi"));
  start();
  ask(chat("hi"));
  ASSERT_EQ(answer(), End::OK);
  EXPECT_FALSE(ended);
  helper.close();
  app.join();
  EXPECT_TRUE(ended);
}

TEST_F(AppTest, ServesTheModelThatIsAskedFor) {
  FakeRuntime tiny(assets.socket("tiny"), saying("wrong")), other(assets.socket("other"), saying("right"));
  start();
  ask(chat("hi", "other"));
  EXPECT_EQ(answer(), End::OK);
  EXPECT_EQ(text(), "right");
}

struct NamedPromptAppTest : AppTest {
  NamedPromptAppTest() {
    std::filesystem::create_directories(assets.root + "/prompts");
    std::ofstream(assets.root + "/prompts/p.json")
        << R"({"id": "p", "model": "tiny", "text": "S", "token_ids": [257, 115, 121, 115, 116, 101, 109, 58, 83, 256]})";
  }
  static std::string prompt_id_of(const inference::ModelInferRequest& request) {
    for (int i = 0; i < request.inputs_size(); ++i)
      if (request.inputs(i).name() == "prompt_id") return request.raw_input_contents(i).substr(4);
    return {};
  }
};

TEST_F(NamedPromptAppTest, ItIsTheBeginningOfWhatTheRuntimeGetsAndIsNamed) {
  FakeRuntime runtime(assets.socket(), saying("x"));
  start();
  auto request = chat("hi");
  request.set_prompt_id("p");
  ask(request);
  EXPECT_EQ(answer(), End::OK);
  ASSERT_EQ(runtime.seen.size(), 1u);
  const std::string& raw = runtime.seen[0].raw_input_contents(0);
  std::vector<int32_t> ids(raw.size() / 4);
  std::memcpy(ids.data(), raw.data(), raw.size());
  std::vector<int32_t> system = {kStart, 's', 'y', 's', 't', 'e', 'm', ':', 'S', kEnd};
  ASSERT_GT(ids.size(), system.size());
  EXPECT_TRUE(std::equal(system.begin(), system.end(), ids.begin()));
  EXPECT_EQ(prompt_id_of(runtime.seen[0]), "p");
}

TEST_F(NamedPromptAppTest, WithToolsTheRuntimeIsNotToldOfAPromptThatEndsOtherwise) {
  FakeRuntime runtime(assets.socket(), saying("x"));
  start();
  auto request = chat("hi");
  request.set_prompt_id("p");
  request.add_tools()->set_name("f");
  ask(request);
  EXPECT_EQ(answer(), End::OK);
  ASSERT_EQ(runtime.seen.size(), 1u);
  EXPECT_EQ(prompt_id_of(runtime.seen[0]), "");
}

TEST_F(NamedPromptAppTest, ARuntimeThatKnowsOtherTokensOrNoneIsToldToTheUserAsAPromptThatIsNotServed) {
  for (const char* words : {"NOT_FOUND: prompt_id names no registered system prompt of this model",
                            "BAD_REQUEST: prompt_id names a system prompt of other tokens"}) {
    FakeRuntime runtime(assets.socket(), [words](auto&, FakeRuntime::Stream& stream, auto&) {
      inference::ModelStreamInferResponse refusal;
      refusal.set_error_message(words);
      stream.Write(refusal);
    });
    start();
    auto request = chat("hi");
    request.set_prompt_id("p");
    ask(request);
    EXPECT_EQ(answer(), End::INVALID_REQUEST);
    EXPECT_EQ(events.back().error().code(), v1::NOT_FOUND) << words;
    EXPECT_EQ(events.back().error().param(), "prompt_id");
    EXPECT_NE(events.back().error().message().find("tie node reload"), std::string::npos);
    TearDown();
  }
}

TEST_F(AppTest, AnUnknownPromptIdIsAClearError) {
  FakeRuntime runtime(assets.socket(), saying("x"));
  start();
  auto request = chat("hi");
  request.set_prompt_id("ghost");
  ask(request);
  EXPECT_EQ(answer(), End::INVALID_REQUEST);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].error().code(), v1::NOT_FOUND);
  EXPECT_EQ(events[0].error().param(), "prompt_id");
  EXPECT_TRUE(runtime.seen.empty());
}

TEST_F(AppTest, RefusalsAreEventsWithCodeAndParameter) {
  FakeRuntime runtime(assets.socket(), saying("x"));
  start();
  auto request = chat("hi");
  request.mutable_sampling()->set_temperature(9);
  ask(request);
  EXPECT_EQ(answer(), End::INVALID_REQUEST);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].error().code(), v1::BAD_REQUEST);
  EXPECT_EQ(events[0].error().param(), "temperature");
  EXPECT_TRUE(runtime.seen.empty());
}

TEST_F(AppTest, AnUnknownModelIsNamedAsSuch) {
  FakeRuntime runtime(assets.socket(), saying("x"));
  start();
  ask(chat("hi", "no-such-model"));
  EXPECT_EQ(answer(), End::INVALID_REQUEST);
  EXPECT_EQ(events[0].error().code(), v1::MODEL_NOT_FOUND);
}

TEST_F(AppTest, APromptOverTheContextIsRefusedBeforeTheRuntime) {
  FakeRuntime runtime(assets.socket(), saying("x"));
  start();
  ask(chat(std::string(1200, 'a')));
  EXPECT_EQ(answer(), End::INVALID_REQUEST);
  EXPECT_EQ(events[0].error().code(), v1::CONTEXT_EXCEEDED);
  EXPECT_TRUE(runtime.seen.empty());
}

TEST_F(AppTest, ARuntimeThatDiesInMidStreamIsSaidWithinTwoSeconds) {
  std::promise<void> spoken;
  FakeRuntime runtime(assets.socket(), [&](const auto&, FakeRuntime::Stream& stream, grpc::ServerContext& context) {
    stream.Write(response(bytes_of("half an ans")));
    spoken.set_value();
    while (!context.IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
  start();
  ask(chat("hi"));
  spoken.get_future().wait();
  int64_t start_ms = monotonic_ms();
  runtime.die();
  EXPECT_EQ(answer(), End::INTERNAL_ERROR);
  EXPECT_LT(monotonic_ms() - start_ms, 2000);
  EXPECT_EQ(events.back().error().code(), v1::RUNTIME_LOST);
  EXPECT_EQ(text(), "half an ans");
}

TEST_F(AppTest, TheRuntimesOwnErrorsReachTheUser) {
  FakeRuntime runtime(assets.socket(), [](const auto&, FakeRuntime::Stream& stream, grpc::ServerContext&) {
    inference::ModelStreamInferResponse message;
    message.set_error_message("OVERLOADED: too many requests wait");
    stream.Write(message);
  });
  start();
  ask(chat("hi"));
  EXPECT_EQ(answer(), End::INTERNAL_ERROR);
  EXPECT_EQ(events[0].error().code(), v1::OVERLOADED);
  EXPECT_EQ(events[0].error().message(), "too many requests wait");
}

TEST_F(AppTest, AFormatBecomesTheRuntimesGrammar) {
  FakeRuntime runtime(assets.socket(), saying("{}"));
  start();
  auto request = chat("hi");
  request.mutable_response_format()->set_kind(v1::ResponseFormat::JSON_OBJECT);
  ask(request);
  EXPECT_EQ(answer(), End::OK);
  ASSERT_EQ(runtime.seen.size(), 1u);
  const auto& inputs = runtime.seen[0].inputs();
  EXPECT_TRUE(std::any_of(inputs.begin(), inputs.end(), [](const auto& input) { return input.name() == "grammar"; }));
}

TEST_F(AppTest, AGrammarThatTheRuntimeRefusesNamesItsParameter) {
  FakeRuntime runtime(assets.socket(), [](const auto&, FakeRuntime::Stream& stream, grpc::ServerContext&) {
    inference::ModelStreamInferResponse message;
    message.set_error_message("BAD_REQUEST: grammar: too large");
    stream.Write(message);
  });
  start();
  auto request = chat("hi");
  request.mutable_response_format()->set_kind(v1::ResponseFormat::REGEX);
  request.mutable_response_format()->set_schema_or_grammar("a+");
  ask(request);
  EXPECT_EQ(answer(), End::INVALID_REQUEST);
  EXPECT_EQ(events[0].error().code(), v1::BAD_REQUEST);
  EXPECT_EQ(events[0].error().param(), "guided_regex");
}

TEST_F(AppTest, ABadSchemaNeverReachesTheRuntime) {
  FakeRuntime runtime(assets.socket(), saying("x"));
  start();
  auto request = chat("hi");
  request.mutable_response_format()->set_kind(v1::ResponseFormat::JSON_SCHEMA);
  request.mutable_response_format()->set_name("answer");
  request.mutable_response_format()->set_schema_or_grammar(R"({"if":{"type":"string"}})");
  ask(request);
  EXPECT_EQ(answer(), End::INVALID_REQUEST);
  EXPECT_EQ(events[0].error().param(), "response_format");
  EXPECT_TRUE(runtime.seen.empty());
}

TEST_F(AppTest, ToolCallsAreEventsOfTheirOwn) {
  FakeRuntime runtime(assets.socket(), saying("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"));
  start();
  auto request = chat("hi");
  request.add_tools()->set_name("f");
  request.mutable_tool_choice()->set_kind(v1::ToolChoice::REQUIRED);
  ask(request);
  EXPECT_EQ(answer(), End::OK);
  EXPECT_EQ(text(), "");
  EXPECT_EQ(events.back().finish_reason(), "tool_calls");
  // The tiny model's template knows no tools: the prompt says what there is.
  const std::string& tokens = runtime.seen[0].raw_input_contents(0);
  std::string prompt;
  for (size_t i = 0; i + 4 <= tokens.size(); i += 4)
    if (tokens[i + 1] == 0) prompt += tokens[i];
  EXPECT_NE(prompt.find("system:You can call these functions"), std::string::npos) << prompt;
}

TEST_F(AppTest, TeardownCancelsTheRuntimeAtOnce) {
  std::promise<int64_t> cancelled;
  FakeRuntime runtime(assets.socket(), [&](const auto&, FakeRuntime::Stream& stream, grpc::ServerContext& context) {
    stream.Write(response(bytes_of("x")));
    while (!context.IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    cancelled.set_value(monotonic_ms());
  });
  start();
  ask(chat("hi"));
  ASSERT_TRUE(hear()->has_response());
  int64_t start_ms = monotonic_ms();
  v1::ToApp teardown;
  teardown.mutable_teardown();
  say(teardown);
  EXPECT_LT(cancelled.get_future().get() - start_ms, 500);
}

TEST_F(AppTest, AWaitingAppEndsWhenItsRuntimeGoes) {
  FakeRuntime runtime(assets.socket(), saying("x"));
  start();
  ASSERT_TRUE(hear()->has_ready());
  runtime.die();
  EXPECT_FALSE(hear().has_value());
}

TEST_F(AppTest, WithoutARuntimeItIsNeverReady) {
  start();
  EXPECT_FALSE(hear().has_value());
}

TEST_F(AppTest, MessagesInTheWrongOrderEndTheRequest) {
  FakeRuntime runtime(assets.socket(), saying("x"));
  start();
  ASSERT_TRUE(hear()->has_ready());
  v1::ToApp message;
  message.mutable_input()->set_final(true);
  say(message);
  EXPECT_EQ(answer(), End::INTERNAL_ERROR);
}

TEST_F(AppTest, EchoOfNoTokensNeedsNoRuntime) {
  FakeRuntime runtime(assets.socket(), saying("x"));
  start();
  v1::InferenceRequest request;
  request.set_model("tiny");
  request.set_raw_text("prompt");
  request.mutable_sampling()->set_echo(true);
  request.mutable_sampling()->set_max_tokens(0);
  ask(request);
  EXPECT_EQ(answer(), End::OK);
  EXPECT_EQ(text(), "prompt");
  EXPECT_EQ(events.back().usage().prompt_tokens(), 6u);
  EXPECT_TRUE(runtime.seen.empty());
}

}  // namespace
}  // namespace tie::request::app
