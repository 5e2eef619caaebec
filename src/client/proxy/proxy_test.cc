#include "client/proxy/proxy.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "client/proxy/limits.h"
#include "client/session/testing/fake_node.h"

namespace tie::client {
namespace {

using nlohmann::json;
using testing::FakeCall;
using testing::FakeNode;

int free_port() {
  int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address);
  socklen_t size = sizeof address;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(socket);
  return ntohs(address.sin_port);
}

struct ProxyTest : ::testing::Test {
  FakeNode node{testing::echo_script};
  std::unique_ptr<RunningProxy> proxy;
  std::unique_ptr<httplib::Client> http;
  std::string api_key;
  std::shared_ptr<TurnKeyTable> turn_keys;

  void SetUp() override { start(testing::trusting_verifier()); }
  void start(std::unique_ptr<NodeVerifier> verifier) {
    proxy.reset();
    auto session = Session::open_with({.node = node.address(), .first_backoff_ms = 5}, std::move(verifier));
    auto started =
        RunningProxy::start(session, {.http = {.port = free_port()}, .api_key = api_key, .turn_keys = turn_keys});
    ASSERT_TRUE(started) << started.error().message;
    proxy = std::move(*started);
    http = std::make_unique<httplib::Client>("127.0.0.1", proxy->port());
    http->set_read_timeout(10);
  }
  json body(const std::string& text, json more = json::object()) {
    json out = {{"model", "test-model"}, {"messages", {{{"role", "user"}, {"content", text}}}}};
    out.update(more);
    return out;
  }
  httplib::Result post(const json& body, const std::string& path = "/v1/chat/completions") {
    return http->Post(path, body.dump(), "application/json");
  }
};

TEST_F(ProxyTest, AnswersAChat) {
  auto got = post(body("one two three"));
  ASSERT_TRUE(got);
  ASSERT_EQ(got->status, 200) << got->body;
  auto answer = json::parse(got->body);
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "one two three");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["usage"]["total_tokens"], 14);
  EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
  EXPECT_TRUE(got->get_header_value("x-tie-verification").starts_with("unattested; release=aaaaaaaaaaaa; key="));
}

TEST_F(ProxyTest, StreamsAChat) {
  auto got = post(body("one two", {{"stream", true}, {"stream_options", {{"include_usage", true}}}}));
  ASSERT_TRUE(got);
  EXPECT_EQ(got->status, 200);
  EXPECT_TRUE(got->get_header_value("Content-Type").starts_with("text/event-stream"));
  EXPECT_NE(got->body.find(R"("content":" two")"), std::string::npos) << got->body;
  EXPECT_TRUE(got->body.ends_with("data: [DONE]\n\n"));
  EXPECT_FALSE(got->get_header_value("x-tie-verification").empty());
}

TEST_F(ProxyTest, KeepsAConnectionForManyRequests) {
  http->set_keep_alive(true);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(post(body("x", {{"stream", i % 2 == 1}}))->status, 200);
}

TEST_F(ProxyTest, AnswersSeveralPromptsInOrder) {
  auto got = post({{"model", "test-model"}, {"prompt", {"a b", "c", "d e f"}}, {"n", 2}}, "/v1/completions");
  ASSERT_EQ(got->status, 200) << got->body;
  auto choices = json::parse(got->body)["choices"];
  ASSERT_EQ(choices.size(), 6u);
  EXPECT_EQ(choices[1]["text"], "a b");
  EXPECT_EQ(choices[2]["text"], "c");
  EXPECT_EQ(choices[5]["text"], "d e f");
}

TEST_F(ProxyTest, ListsModels) {
  auto got = http->Get("/v1/models");
  ASSERT_EQ(got->status, 200);
  json model = json::parse(got->body)["data"][0];
  EXPECT_EQ(model["id"], "test-model");
  EXPECT_EQ(model["model_id"].get<std::string>().size(), 64u) << "of weights, tokenizer and template together";
  EXPECT_FALSE(model.contains("sha256")) << "it is the digest of no file";
  EXPECT_EQ(http->Get("/v1/models/test-model")->status, 200);
  EXPECT_EQ(http->Get("/v1/models/other")->status, 404);
  EXPECT_EQ(http->Get("/healthz")->status, 200);
}

TEST_F(ProxyTest, SaysWhichModelsExist) {
  json other = body("x");
  other["model"] = "gpt-4";
  auto got = post(other);
  EXPECT_EQ(got->status, 404);
  auto error = json::parse(got->body)["error"];
  EXPECT_EQ(error["code"], "model_not_found");
  EXPECT_NE(error["message"].get<std::string>().find("test-model"), std::string::npos);
  EXPECT_EQ(node.requests(), 0);
}

TEST_F(ProxyTest, GivesEveryErrorOfTheTableItsStatus) {
  struct Row {
    Code code;
    int status;
    const char* word;
  };
  for (const Row& row :
       {Row{Code::kBadRequest, 400, "bad_request"}, Row{Code::kContextExceeded, 400, "context_length_exceeded"},
        Row{Code::kUnsupportedFeature, 400, "unsupported_feature"}, Row{Code::kOverloaded, 429, "rate_limit_exceeded"},
        Row{Code::kNotReady, 503, "not_ready"}, Row{Code::kRuntimeLost, 502, "runtime_lost"},
        Row{Code::kDeadline, 504, "deadline"}, Row{Code::kInternal, 500, "internal"},
        Row{Code::kReplayed, 409, "replayed"}, Row{Code::kTooLarge, 413, "too_large"}}) {
    node.refuse_next(100, row.code);
    auto got = post(body("x"));
    ASSERT_TRUE(got);
    EXPECT_EQ(got->status, row.status) << row.word;
    auto error = json::parse(got->body)["error"];
    EXPECT_EQ(error["code"], row.word);
    EXPECT_TRUE(error["message"].is_string() && error["type"].is_string() && error["param"].is_null());
    EXPECT_EQ(got->get_header_value("x-tie-error"), error_info(row.code).name);
  }
}

TEST_F(ProxyTest, AnErrorBeforeTheFirstEventHasAStatusAlsoWhenStreaming) {
  node.refuse_next(100, Code::kOverloaded);
  auto got = post(body("x", {{"stream", true}}));
  EXPECT_EQ(got->status, 429);
  EXPECT_EQ(got->get_header_value("Retry-After"), "1");
}

TEST_F(ProxyTest, ACutStreamIsShownAsCut) {
  node.set_script([](FakeCall& call) {
    call.send_text("begun");
    call.cut();
  });
  auto streamed = post(body("x", {{"stream", true}}));
  EXPECT_NE(streamed->body.find("begun"), std::string::npos);
  EXPECT_NE(streamed->body.find("answer_cut"), std::string::npos);
  EXPECT_EQ(streamed->body.find("[DONE]"), std::string::npos);
  auto whole = post(body("x"));
  EXPECT_EQ(whole->status, 502);
  EXPECT_EQ(json::parse(whole->body)["error"]["code"], "answer_cut");
}

TEST_F(ProxyTest, AClientThatGoesAwayCancelsWithinASecond) {
  for (bool stream : {true, false}) {
    int before = node.cancelled();
    std::atomic<bool> running{false};
    node.set_script([&](FakeCall& call) {
      call.send_text("begun");
      running = true;
      while (!call.cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    });
    int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(uint16_t(proxy->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    std::string text = body("x", {{"stream", stream}}).dump();
    std::string message = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(proxy->port()) +
                          "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(text.size()) +
                          "\r\n\r\n" + text;
    ASSERT_EQ(::send(socket, message.data(), message.size(), 0), ssize_t(message.size()));
    while (!running) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ::close(socket);
    int64_t gone_ms = monotonic_ms();
    while (node.cancelled() == before && monotonic_ms() - gone_ms < 3000)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_EQ(node.cancelled(), before + 1);
    EXPECT_LT(monotonic_ms() - gone_ms, 1000);
  }
}

TEST_F(ProxyTest, RefusesBodiesOverTheLimitWithAReply) {
  http->set_write_timeout(10);
  auto got = http->Post("/v1/chat/completions", std::string(kMaxHttpBodyBytes + 1, ' '), "application/json");
  ASSERT_TRUE(got);
  EXPECT_EQ(got->status, 413);
  EXPECT_EQ(json::parse(got->body)["error"]["code"], "too_large");
}

TEST_F(ProxyTest, RefusesAnEndlessChunkedBody) {
  size_t sent = 0;
  auto got = http->Post(
      "/v1/chat/completions",
      [&](size_t, httplib::DataSink& sink) {
        std::string piece(1 << 20, ' ');
        sent += piece.size();
        if (!sink.write(piece.data(), piece.size())) return false;
        if (sent > 200u << 20) sink.done();
        return true;
      },
      "application/json");
  EXPECT_LT(sent, 100u << 20);
}

TEST_F(ProxyTest, RefusesFormsAndCompressedBodies) {
  auto form = http->Post("/v1/chat/completions", "model=x", "application/x-www-form-urlencoded");
  ASSERT_TRUE(form);
  EXPECT_EQ(form->status, 415);
  auto packed = http->Post("/v1/chat/completions", {{"Content-Encoding", "gzip"}}, "\x1f\x8b", "application/json");
  ASSERT_TRUE(packed);
  EXPECT_EQ(packed->status, 415);
}

TEST_F(ProxyTest, AFormToAnUnknownAddressIsToldThatTheAddressIsUnknown) {
  for (const char* type : {"application/x-www-form-urlencoded", "multipart/form-data; boundary=x"}) {
    auto got = http->Post("/v1/audio/transcriptions", "model=x", type);
    ASSERT_TRUE(got);
    EXPECT_EQ(got->status, 404);
    EXPECT_EQ(json::parse(got->body)["error"]["code"], "unknown_url");
  }
  EXPECT_EQ(http->Post("/v1/chat/completions/", "model=x", "application/x-www-form-urlencoded")->status, 415);
}

TEST_F(ProxyTest, RefusesForeignHostsBeforeDoingAnything) {
  auto got = http->Get("/v1/models", {{"Host", "evil.example"}});
  EXPECT_EQ(got->status, 403);
  EXPECT_EQ(node.bundles(), 0);
  EXPECT_EQ(got->get_header_value("x-tie-verification"), "none");
}

TEST_F(ProxyTest, SurvivesHostileHeaders) {
  std::string range = "bytes=0-";
  for (int i = 0; i < 900; ++i) range += ",1-2";
  auto ranged = http->Get("/healthz", {{"Range", range}});
  ASSERT_TRUE(ranged);
  auto longer = http->Get("/" + std::string(4000, 'a'));
  ASSERT_TRUE(longer);
  EXPECT_EQ(longer->status, 414);
  httplib::Headers many;
  for (int i = 0; i < 5000; ++i) many.emplace("X-Header-" + std::to_string(i), std::string(50, 'x'));
  auto flooded = http->Get("/healthz", many);
  EXPECT_TRUE(!flooded || flooded->status == 400);
  EXPECT_EQ(http->Get("/healthz")->status, 200);
}

TEST_F(ProxyTest, WrongPathsAndMethodsAreExplained) {
  EXPECT_EQ(http->Get("/v1/embeddings")->status, 404);
  EXPECT_EQ(http->Get("/v1/chat/completions")->status, 405);
  EXPECT_EQ(http->Delete("/v1/models")->status, 405);
  EXPECT_EQ(http->Get("/")->status, 200);
}

TEST_F(ProxyTest, ARefusedNodeGetsNothing) {
  start(testing::refusing_verifier());
  auto got = post(body("x"));
  EXPECT_EQ(got->status, 403);
  EXPECT_EQ(json::parse(got->body)["error"]["code"], "permission_denied");
  EXPECT_EQ(node.requests(), 0);
  EXPECT_EQ(got->get_header_value("x-tie-verification"), "none");
}

// A proxy that keeps turn keys, and what the node is sent.
struct ConversationTest : ProxyTest {
  struct Keys {
    std::string read, write;
    uint32_t read_tokens = 0;
  };
  std::mutex mutex;
  Keys last;

  void SetUp() override {
    turn_keys = std::make_shared<TurnKeyTable>();
    start(testing::trusting_verifier());
    node.set_script([this](FakeCall& call) {
      {
        std::lock_guard lock(mutex);
        last = {call.request().turn_key_read(), call.request().turn_key_write(), call.request().turn_key_read_tokens()};
      }
      testing::echo_script(call);
    });
  }
  // The node echoes the last message, so the answer to "x" is "x".
  Keys ask(const std::vector<std::string>& texts, const httplib::Headers& headers = {}, json more = json::object()) {
    json messages = json::array();
    for (size_t i = 0; i < texts.size(); ++i)
      messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", texts[i]}});
    json asked = {{"model", "test-model"}, {"messages", messages}};
    asked.update(more);
    auto got = http->Post("/v1/chat/completions", headers, asked.dump(), "application/json");
    EXPECT_EQ(got->status, 200) << got->body;
    std::lock_guard lock(mutex);
    return last;
  }
};

TEST_F(ConversationTest, TheNextTurnCarriesTheKeyOfItsConversation) {
  for (bool stream : {false, true}) {
    std::string hello = stream ? "one two" : "hello";
    Keys first = ask({hello}, {}, {{"stream", stream}}), second = ask({hello, hello, "more"}, {}, {{"stream", stream}});
    EXPECT_EQ(first.read, "");
    EXPECT_EQ(first.write.size(), 32u);
    EXPECT_EQ(second.read, first.write);
    EXPECT_EQ(second.write, first.write);
    EXPECT_EQ(first.read_tokens, 0u);
    EXPECT_EQ(second.read_tokens, stream ? 13u : 12u) << "the node says 11 for the prompt";
    Keys branch = ask({hello, hello, "less"});
    EXPECT_EQ(branch.read, first.write);
    EXPECT_NE(branch.write, first.write);
  }
}

TEST_F(ConversationTest, AnotherApiKeyGetsNothing) {
  Keys alice = ask({"hello"}, {{"Authorization", "Bearer alice"}});
  EXPECT_EQ(ask({"hello", "hello", "x"}, {{"Authorization", "Bearer bob"}}).read, "");
  EXPECT_EQ(ask({"hello", "hello", "x"}).read, "");
  EXPECT_EQ(ask({"hello", "hello", "x"}, {{"Authorization", "Bearer alice"}}).read, alice.write);
}

TEST_F(ConversationTest, ARequestMayStayOutOfEveryCache) {
  Keys kept = ask({"hello"});
  for (Keys out : {ask({"hello", "hello", "x"}, {{"x-tie-cache", "off"}}),
                   ask({"hello", "hello", "x"}, {}, {{"tie_cache", false}})})
    EXPECT_EQ(out.read + out.write, "");
  EXPECT_EQ(ask({"hello", "hello", "x"}, {{"x-tie-cache", "on"}}).read, kept.write);
  auto wrong = http->Post("/v1/chat/completions", {{"x-tie-cache", "maybe"}}, body("x").dump(), "application/json");
  EXPECT_EQ(wrong->status, 400);
  EXPECT_EQ(json::parse(wrong->body)["error"]["param"], "x-tie-cache");
}

TEST_F(ConversationTest, TextCompletionsAndProxiesWithoutACacheSendNoKeys) {
  http->Post("/v1/completions", json{{"model", "test-model"}, {"prompt", "x"}}.dump(), "application/json");
  EXPECT_EQ(last.read + last.write, "");
  turn_keys = nullptr;
  start(testing::trusting_verifier());
  EXPECT_EQ(ask({"hello"}).write, "");
}

TEST_F(ConversationTest, ACutAnswerMayBeAskedAgainUnderTheSameKey) {
  Keys first = ask({"hello"});
  node.set_script([this](FakeCall& call) {
    std::lock_guard lock(mutex);
    last = {call.request().turn_key_read(), call.request().turn_key_write(), 0};
    call.send_text("begun");
    call.cut();
  });
  json messages = {{{"role", "user"}, {"content", "hello"}},
                   {{"role", "assistant"}, {"content", "hello"}},
                   {{"role", "user"}, {"content", "x"}}};
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(post({{"model", "test-model"}, {"messages", messages}})->status, 502);
    EXPECT_EQ(last.write, first.write);
  }
}

TEST_F(ProxyTest, ADrainLetsARunningAnswerEndAndTakesNoOther) {
  std::atomic<bool> running{false}, release{false};
  node.set_script([&](FakeCall& call) {
    running = true;
    while (!release && !call.cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    call.send_text("to the end");
    call.finish_with(v1::FinalSummary::OK);
  });
  std::string answered;
  std::thread client([&] { answered = post(body("x"))->body; });
  while (!running) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  bool asked = false;
  proxy->drain(Deadline::in_ms(30'000), [&] {
    if (asked) return false;
    asked = true;
    auto refused = httplib::Client("127.0.0.1", proxy->port()).Get("/healthz");
    EXPECT_TRUE(refused && refused->status == 503 && refused->has_header("Retry-After"));
    if (refused) {
      EXPECT_NE(refused->body.find("being stopped"), std::string::npos) << refused->body;
    }
    release = true;
    return false;
  });
  proxy->stop();
  client.join();
  EXPECT_NE(answered.find("to the end"), std::string::npos) << answered;
}

TEST_F(ProxyTest, AnAnswerThatIsStoppedSaysSoInWholeWords) {
  std::atomic<bool> running{false};
  node.set_script([&](FakeCall& call) {
    running = true;
    while (!call.cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
  int status = 0;
  std::string answered;
  std::thread client([&] {
    if (auto got = post(body("x"))) status = got->status, answered = got->body;
  });
  while (!running) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  proxy->drain(Deadline::in_ms(0), [] { return true; });
  proxy->stop();
  client.join();
  EXPECT_EQ(status, 503);
  EXPECT_NE(answered.find("The proxy was stopped before the answer was complete"), std::string::npos) << answered;
}

TEST_F(ProxyTest, StopsWhileAnswersRun) {
  std::atomic<bool> running{false};
  node.set_script([&](FakeCall& call) {
    call.send_text("begun");
    running = true;
    while (!call.cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
  std::thread client([&] { post(body("x", {{"stream", true}})); });
  while (!running) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  int64_t began_ms = monotonic_ms();
  proxy->stop();
  client.join();
  EXPECT_LT(monotonic_ms() - began_ms, 2000);
}

}  // namespace
}  // namespace tie::client
