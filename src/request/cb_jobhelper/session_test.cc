#include "request/cb_jobhelper/session.h"

#include <gtest/gtest.h>

#include "request/cb_jobhelper/testing.h"

namespace tie::request::jobhelper {
namespace {

using testing::app_end;
using testing::app_event;
using testing::Client;
using End = v1::FromApp::EndOfResponse;
using Final = v1::FinalSummary;

struct Recorder : Peers {
  std::vector<v1::FromHelper> cloudboard;
  std::vector<v1::ToApp> app;
  std::vector<v1::DecapRequest> keys;
  void to_cloudboard(const v1::FromHelper& message) override { cloudboard.push_back(message); }
  void to_app(const v1::ToApp& message) override { app.push_back(message); }
  void to_keys(const v1::DecapRequest& message) override { keys.push_back(message); }
  std::string app_input() const {
    std::string out;
    for (const auto& message : app) out += message.input().data();
    return out;
  }
};

struct SessionTest : ::testing::Test {
  Client client;
  Recorder peers;
  Session session{peers};
  void begin() {
    session.from_cloudboard(client.start());
    session.from_keys(client.keys_reply());
  }
  Final::Status final_status() {
    auto events = client.open(peers.cloudboard);
    tie_check(!events.empty() && client.opener->finished(), "the response has an authenticated end");
    return events.back().final().status();
  }
  void expect_uniform_refusal() {
    ASSERT_EQ(peers.cloudboard.size(), 1u);
    EXPECT_EQ(peers.cloudboard[0].failed().code(), v1::UNAUTHENTICATED);
    EXPECT_EQ(peers.cloudboard[0].failed().message(), "The request could not be authenticated.");
    EXPECT_TRUE(session.done());
    EXPECT_TRUE(peers.app.empty()) << "nothing reaches the app before the request is accepted";
  }
};

TEST_F(SessionTest, CarriesARequestAndItsAnswer) {
  begin();
  session.from_cloudboard(client.chunk("hello ", false));
  session.from_cloudboard(client.chunk("node", true));
  EXPECT_EQ(peers.app_input(), "hello node");
  EXPECT_TRUE(peers.app.back().input().final());
  session.from_app(app_event("an answer"));
  session.from_app(app_end(End::OK));
  auto events = client.open(peers.cloudboard);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].event().text(), "an answer");
  EXPECT_EQ(events[1].final().status(), Final::OK);
  EXPECT_TRUE(client.opener->end_of_stream().has_value());
  EXPECT_TRUE(session.done());
}

TEST_F(SessionTest, ChunksThatCameBeforeTheKeyKeepTheirFinalFlag) {
  session.from_cloudboard(client.start());
  session.from_cloudboard(client.chunk("all ", false));
  session.from_cloudboard(client.chunk("early", true));
  EXPECT_TRUE(peers.app.empty());
  session.from_keys(client.keys_reply());
  EXPECT_EQ(peers.app_input(), "all early");
  EXPECT_TRUE(peers.app.back().input().final());
}

TEST_F(SessionTest, TakesNoMoreInputThanItsBufferBeforeTheKey) {
  session.from_cloudboard(client.start());
  size_t held = 0;
  while (session.takes_input()) {
    session.from_cloudboard(client.chunk(std::string(64 << 10, 'x'), false));
    held += 64 << 10;
  }
  EXPECT_LE(held, kMaxBufferedBeforeKeyBytes + (64 << 10));
  session.from_keys(client.keys_reply());
  EXPECT_TRUE(session.takes_input());
  EXPECT_EQ(peers.app_input().size(), held);
}

TEST_F(SessionTest, EveryRefusalBeforeAcceptanceIsTheSame) {
  v1::DecapReply refused;
  refused.mutable_error()->set_code(v1::REPLAYED);
  refused.mutable_error()->set_message("a detail that must stay inside");
  session.from_cloudboard(client.start());
  session.from_keys(refused);
  expect_uniform_refusal();
}

TEST_F(SessionTest, AWrongSharedSecretIsTheSameRefusal) {
  v1::DecapReply reply = client.keys_reply();
  (*reply.mutable_shared_secret())[3] ^= 1;
  session.from_cloudboard(client.start());
  session.from_keys(reply);
  expect_uniform_refusal();
}

TEST_F(SessionTest, AChangedFirstChunkIsTheSameRefusal) {
  begin();
  v1::ToHelper chunk = client.chunk("hello", true);
  chunk.mutable_chunk()->mutable_sealed()->back() ^= 1;
  session.from_cloudboard(chunk);
  expect_uniform_refusal();
}

TEST_F(SessionTest, ChangedClearParametersAreTheSameRefusal) {
  v1::ToHelper start = client.start();
  v1::ClearParameters clear;
  ASSERT_TRUE(clear.ParseFromString(start.start().clear_parameters()));
  clear.set_trace_id("changed on the way");
  start.mutable_start()->set_clear_parameters(clear.SerializeAsString());
  session.from_cloudboard(start);
  session.from_keys(client.keys_reply());
  session.from_cloudboard(client.chunk("hello", true));
  expect_uniform_refusal();
}

TEST_F(SessionTest, LostKeysServiceIsTheSameRefusal) {
  session.from_cloudboard(client.start());
  session.lost_keys();
  expect_uniform_refusal();
}

TEST_F(SessionTest, AChangedLaterChunkEndsTheRequestAuthenticated) {
  begin();
  session.from_cloudboard(client.chunk("hello", false));
  v1::ToHelper chunk = client.chunk("more", true);
  chunk.mutable_chunk()->mutable_sealed()->front() ^= 1;
  session.from_cloudboard(chunk);
  EXPECT_EQ(final_status(), Final::INVALID_REQUEST);
  EXPECT_TRUE(peers.app.back().has_teardown());
}

TEST_F(SessionTest, AFinalFlagAddedOnTheWayIsNoticed) {
  begin();
  session.from_cloudboard(client.chunk("hello", false));
  v1::ToHelper chunk = client.chunk("more", false);
  chunk.mutable_chunk()->set_final(true);
  session.from_cloudboard(chunk);
  EXPECT_EQ(final_status(), Final::INVALID_REQUEST);
}

TEST_F(SessionTest, AppDeathBecomesASealedInternalError) {
  begin();
  session.from_cloudboard(client.chunk("hello", true));
  session.from_app(app_event("half an ans"));
  session.lost_app();
  EXPECT_EQ(final_status(), Final::INTERNAL_ERROR);
}

TEST_F(SessionTest, AnUnpaddedEventNeverLeaves) {
  begin();
  session.from_cloudboard(client.chunk("hello", true));
  v1::FromApp message;
  message.mutable_response()->set_message("just 23 bytes of secret");
  session.from_app(message);
  EXPECT_EQ(final_status(), Final::INTERNAL_ERROR);
}

TEST_F(SessionTest, ChunksAfterTheFinalOneEndTheRequest) {
  begin();
  v1::ToHelper last = client.chunk("hello", true);
  session.from_cloudboard(last);
  session.from_cloudboard(last);
  EXPECT_EQ(final_status(), Final::INTERNAL_ERROR);
}

TEST_F(SessionTest, CancelTearsTheAppDown) {
  begin();
  session.from_cloudboard(client.chunk("hello", true));
  v1::ToHelper cancel;
  cancel.mutable_cancel();
  session.from_cloudboard(cancel);
  EXPECT_TRUE(peers.app.back().has_teardown());
  EXPECT_TRUE(session.done());
}

TEST_F(SessionTest, DerivedKeysDifferByPurposeAndAreBounded) {
  begin();
  session.from_cloudboard(client.chunk("hello", true));
  v1::FromApp ask;
  ask.mutable_derive_key()->set_purpose("kv-cache");
  session.from_app(ask);
  std::string first = peers.app.back().derived_key().key();
  EXPECT_EQ(first.size(), 32u);
  session.from_app(ask);
  EXPECT_EQ(peers.app.back().derived_key().key(), first);
  ask.mutable_derive_key()->set_purpose("another");
  session.from_app(ask);
  EXPECT_NE(peers.app.back().derived_key().key(), first);
  for (size_t i = 0; i < kMaxDerivedKeys && !session.done(); ++i) session.from_app(ask);
  EXPECT_EQ(final_status(), Final::INTERNAL_ERROR);
}

std::string framed(const v1::BodyMessage& message) {
  return to_string(pad_message(message.SerializeAsString()));
}

struct TokenTest : SessionTest {
  std::string seen;
  Session with_tokens{peers, [this](ByteView token) {
                        seen = to_string(token);
                        return seen == "good";
                      }};
  void send(const std::string& token, size_t cut) {
    v1::BodyMessage message;
    message.set_one_time_token(token);
    std::string stream = framed(message) + "the rest";
    with_tokens.from_cloudboard(client.start(true));
    with_tokens.from_keys(client.keys_reply());
    with_tokens.from_cloudboard(client.chunk(stream.substr(0, cut), false));
    if (!with_tokens.done()) with_tokens.from_cloudboard(client.chunk(stream.substr(cut), true));
  }
};

TEST_F(TokenTest, AGoodTokenIsTakenOutOfTheStreamWhereverItIsCut) {
  send("good", 50);
  EXPECT_EQ(peers.app_input(), "the rest");
}

TEST_F(TokenTest, ABadTokenIsTheUniformRefusal) {
  send("bad", 130);
  ASSERT_EQ(peers.cloudboard.size(), 1u);
  EXPECT_EQ(peers.cloudboard[0].failed().code(), v1::UNAUTHENTICATED);
  EXPECT_TRUE(peers.app.empty());
}

TEST_F(SessionTest, ARequiredTokenWithoutAVerifierIsRefused) {
  v1::BodyMessage message;
  message.set_one_time_token("any");
  session.from_cloudboard(client.start(true));
  session.from_keys(client.keys_reply());
  session.from_cloudboard(client.chunk(framed(message), true));
  expect_uniform_refusal();
}

}  // namespace
}  // namespace tie::request::jobhelper
