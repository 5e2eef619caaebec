#include "client/session/session.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <set>
#include <thread>

#include "base/byte_buckets.h"
#include "base/clock.h"
#include "client/session/request_body.h"
#include "client/session/testing/fake_node.h"
#include "os/fd.h"

namespace tie::client {
namespace {

using testing::FakeCall;
using testing::FakeNode;

v1::InferenceRequest question(const std::string& text) {
  v1::InferenceRequest request;
  request.set_model("test-model");
  auto* message = request.mutable_conversation()->add_messages();
  message->set_role("user");
  message->add_parts()->set_text(text);
  return request;
}

std::shared_ptr<Session> session_to(const FakeNode& node) {
  return Session::open_with({.node = node.address(), .first_backoff_ms = 5}, testing::trusting_verifier());
}

struct Heard {
  std::string text;
  int events = 0;
  Error error{Code::kOk, {}};
  bool cut = false, complete = false;
  int attempts = 0;
};

Heard hear(Session& session, const v1::InferenceRequest& request,
           std::shared_ptr<Cancellation> cancel = std::make_shared<Cancellation>()) {
  auto answer = session.ask(request, cancel);
  Heard heard;
  v1::InferenceEvent event;
  for (;;) {
    auto got = answer->next(event);
    heard.cut = answer->was_cut();
    heard.attempts = answer->attempts();
    if (!got) {
      heard.error = got.error();
      return heard;
    }
    if (!*got) {
      heard.complete = true;
      return heard;
    }
    ++heard.events;
    heard.text += event.text();
  }
}

TEST(Session, StreamsAnAnswerToItsAuthenticatedEnd) {
  FakeNode node(testing::echo_script);
  auto session = session_to(node);
  Heard heard = hear(*session, question("one two three"));
  EXPECT_TRUE(heard.complete) << heard.error.message;
  EXPECT_EQ(heard.text, "one two three");
  EXPECT_EQ(session->last_node()->summary().substr(0, 10), "unattested");
}

TEST(Session, SendsBodiesOfBucketSizesOnly) {
  FakeNode node(testing::echo_script);
  auto session = session_to(node);
  for (size_t size : {1, 90, 100, 110, 200, 5000, 300'000}) hear(*session, question(std::string(size, 'x')));
  for (size_t size : node.body_sizes()) EXPECT_TRUE(is_bucket(size)) << size;
}

TEST(Session, BodiesOfEverySmallSizeAreBuckets) {
  for (size_t size = 0; size < 6000; ++size) {
    auto body = request_body(question(std::string(size, 'x')));
    ASSERT_TRUE(body);
    ASSERT_TRUE(is_bucket(body->size())) << size;
  }
}

TEST(Session, RefusesABodyOverTheLimitWithoutSendingIt) {
  FakeNode node(testing::echo_script);
  auto session = session_to(node);
  Heard heard = hear(*session, question(std::string(11 << 20, 'x')));
  EXPECT_EQ(heard.error.code, Code::kTooLarge);
  EXPECT_EQ(node.requests(), 0);
}

TEST(Session, RefetchesTheBundleOnceWhenTheKeyIsGone) {
  FakeNode node(testing::echo_script);
  auto session = session_to(node);
  ASSERT_TRUE(hear(*session, question("a")).complete);
  node.rotate_key();
  Heard heard = hear(*session, question("b"));
  EXPECT_TRUE(heard.complete) << heard.error.message;
  EXPECT_EQ(heard.attempts, 2);
  EXPECT_EQ(node.bundles(), 2);
}

TEST(Session, ANodeBetweenTwoKeysIsWaitedForWithAWord) {
  FakeNode node(testing::echo_script);
  auto session = session_to(node);
  node.withhold_bundles(3, Code::kKeyUnknownOrExpired);
  int told = 0;
  auto found = session->node_with_key(30'000, [&] { ++told; });
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(told, 1);
  EXPECT_EQ(node.bundles(), 4);
}

TEST(Session, ANodeThatMakesNoOtherKeyIsGivenUpAndNoOtherErrorIsWaitedOut) {
  FakeNode node(testing::echo_script);
  auto session = session_to(node);
  node.withhold_bundles(1'000, Code::kKeyUnknownOrExpired);
  EXPECT_EQ(session->node_with_key(0, [] {}).error().code, Code::kKeyUnknownOrExpired);
  node.withhold_bundles(1, Code::kNotReady);
  EXPECT_EQ(session->node_with_key(30'000, [] { ADD_FAILURE() << "it does not wait"; }).error().code, Code::kNotReady);
}

TEST(Session, ANodeThatRestartedWithAnotherKeyIsFoundAgain) {
  auto node = std::make_unique<FakeNode>(testing::echo_script);
  int port = std::atoi(node->address().substr(node->address().rfind(':') + 1).c_str());
  auto session = Session::open_with({.node = node->address(), .first_backoff_ms = 40}, testing::trusting_verifier());
  ASSERT_TRUE(hear(*session, question("a")).complete);
  node.reset();
  EXPECT_EQ(hear(*session, question("a")).error.code, Code::kNotReady);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    node = std::make_unique<FakeNode>(testing::echo_script, port);
  });
  Heard heard = hear(*session, question("b"));
  later.join();
  EXPECT_TRUE(heard.complete) << heard.error.message;
}

TEST(Session, ARequestThatDiedWithTheNodesKeyIsAskedAgainWithTheNextOne) {
  FakeNode node(testing::echo_script);
  auto session = session_to(node);
  ASSERT_TRUE(hear(*session, question("a")).complete);
  node.refuse_next(1, Code::kUnauthenticated);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    node.rotate_key();
  });
  Heard heard = hear(*session, question("b"));
  later.join();
  EXPECT_TRUE(heard.complete) << heard.error.message;
  EXPECT_EQ(heard.attempts, 2);
}

TEST(Session, ASecondRefusalUnderAKeyThatStaysIsTheAnswer) {
  FakeNode node(testing::echo_script);
  auto session = session_to(node);
  node.refuse_next(100, Code::kUnauthenticated);
  Heard heard = hear(*session, question("a"));
  EXPECT_EQ(heard.error.code, Code::kUnauthenticated);
  EXPECT_EQ(heard.attempts, 2);
}

TEST(Session, ARequestThatAKeyServiceWasTooSlowForIsAskedAgainUnderTheSameKey) {
  FakeNode node(testing::echo_script);
  auto session = session_to(node);
  node.refuse_next(1, Code::kUnauthenticated);
  Heard heard = hear(*session, question("a"));
  EXPECT_TRUE(heard.complete) << heard.error.message;
  EXPECT_EQ(heard.attempts, 2);
}

TEST(Session, GivesUpWhenTheKeyStaysUnknown) {
  FakeNode node(testing::echo_script);
  auto session = session_to(node);
  node.refuse_next(100, Code::kKeyUnknownOrExpired);
  Heard heard = hear(*session, question("a"));
  EXPECT_EQ(heard.error.code, Code::kKeyUnknownOrExpired);
  EXPECT_EQ(heard.attempts, 2);
}

TEST(Session, WaitsForTheBundleOfANodeThatHasJustStartedAgain) {
  FakeNode node(testing::echo_script);
  auto session = session_to(node);
  ASSERT_TRUE(hear(*session, question("a")).complete);
  node.refuse_next(1, Code::kKeyUnknownOrExpired);
  node.withhold_bundles(3);
  Heard heard = hear(*session, question("b"));
  EXPECT_TRUE(heard.complete) << heard.error.message;
  EXPECT_EQ(heard.attempts, 2);
  EXPECT_EQ(node.bundles(), 1 + 3 + 1);
}

TEST(Session, BacksOffOnOverloadWithAFreshKeyEachTime) {
  FakeNode node(testing::echo_script);
  auto session = session_to(node);
  node.refuse_next(3, Code::kOverloaded);
  Heard heard = hear(*session, question("a"));
  EXPECT_TRUE(heard.complete) << heard.error.message;
  EXPECT_EQ(heard.attempts, 4);
  auto keys = node.encapsulated_keys();
  EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), keys.size());
}

TEST(Session, SendsItsCredentialWithRequestsAlone) {
  FakeNode node(testing::echo_script);
  auto session = Session::open_with({.node = node.address(), .credential = "Bearer abc", .first_backoff_ms = 5},
                                    testing::trusting_verifier());
  node.refuse_next(1, Code::kOverloaded);
  EXPECT_TRUE(hear(*session, question("a")).complete);
  EXPECT_EQ(node.credentials(), (std::vector<std::string>{"", "Bearer abc", "Bearer abc"}))
      << "the bundle, and two attempts";
  EXPECT_TRUE(hear(*session_to(node), question("a")).complete);
  EXPECT_EQ(node.credentials().back(), "") << "nothing unless it is asked for";
}

TEST(Session, RefusesACredentialThatNoMetadataCanCarry) {
  for (const std::string& bad : {std::string(), std::string(" a"), std::string("a "), std::string("a\nb"),
                                 std::string("caf\xc3\xa9"), std::string("a\0b", 3), std::string(1025, 'a')})
    EXPECT_FALSE(is_credential(bad)) << bad;
  for (const std::string& good : {std::string("a"), std::string("Bearer a~!\""), std::string(1024, 'a')})
    EXPECT_TRUE(is_credential(good)) << good;
}

TEST(Session, ReportsTheOverloadWhenItLasts) {
  FakeNode node(testing::echo_script);
  auto session = session_to(node);
  node.refuse_next(100, Code::kOverloaded);
  Heard heard = hear(*session, question("a"));
  EXPECT_EQ(heard.error.code, Code::kOverloaded);
  EXPECT_EQ(heard.attempts, session->options().max_attempts);
  EXPECT_FALSE(heard.cut);
}

TEST(Session, DoesNotRetryABadRequest) {
  FakeNode node(testing::echo_script);
  auto session = session_to(node);
  node.refuse_next(1, Code::kContextExceeded);
  EXPECT_EQ(hear(*session, question("a")).error.code, Code::kContextExceeded);
  EXPECT_EQ(node.requests(), 1);
}

TEST(Session, NeverRetriesAfterAFirstEvent) {
  FakeNode node([](FakeCall& call) {
    call.send_text("begun");
    call.refuse(Code::kRuntimeLost, "the runtime stopped");
  });
  auto session = session_to(node);
  Heard heard = hear(*session, question("a"));
  EXPECT_EQ(heard.error.code, Code::kRuntimeLost);
  EXPECT_TRUE(heard.cut);
  EXPECT_EQ(node.requests(), 1);
}

TEST(Session, AStreamWithoutAuthenticatedEndIsCut) {
  FakeNode node([](FakeCall& call) {
    call.send_text("begun");
    call.cut();
  });
  auto session = session_to(node);
  Heard heard = hear(*session, question("a"));
  EXPECT_FALSE(heard.complete);
  EXPECT_TRUE(heard.cut);
  EXPECT_NE(heard.error.message.find("cut"), std::string::npos);
}

TEST(Session, AChangedChunkIsRefused) {
  FakeNode node([](FakeCall& call) {
    call.send_text("begun");
    call.corrupt_next();
    call.send_text("forged");
    call.finish_with(v1::FinalSummary::OK);
  });
  auto session = session_to(node);
  Heard heard = hear(*session, question("a"));
  EXPECT_EQ(heard.text, "begun");
  EXPECT_EQ(heard.error.code, Code::kCorrupt);
  EXPECT_TRUE(heard.cut);
}

TEST(Session, AnErrorEventCarriesItsParameter) {
  FakeNode node([](FakeCall& call) {
    v1::InferenceEvent event;
    event.mutable_error()->set_code(v1::CONTEXT_EXCEEDED);
    event.mutable_error()->set_message("the prompt has 9000 tokens, the model takes 2048");
    event.mutable_error()->set_param("messages");
    call.send(event);
    call.finish_with(v1::FinalSummary::INVALID_REQUEST);
  });
  auto session = session_to(node);
  auto answer = session->ask(question("a"), std::make_shared<Cancellation>());
  v1::InferenceEvent event;
  auto got = answer->next(event);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, Code::kContextExceeded);
  EXPECT_EQ(answer->error_param(), "messages");
  EXPECT_FALSE(answer->was_cut());
  answer.reset();
  EXPECT_EQ(node.cancelled(), 0);  // the stream was read to its end
}

TEST(Session, CancellingReachesTheNodeWithinASecond) {
  FakeNode node([](FakeCall& call) {
    call.send_text("begun");
    while (!call.cancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  auto session = session_to(node);
  auto cancel = std::make_shared<Cancellation>();
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    cancel->cancel();
  });
  int64_t began_ms = monotonic_ms();
  Heard heard = hear(*session, question("a"), cancel);
  other.join();
  EXPECT_EQ(heard.error.code, Code::kCancelled);
  EXPECT_LT(monotonic_ms() - began_ms, 1000);
  for (int i = 0; i < 100 && node.cancelled() == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(node.cancelled(), 1);
}

TEST(Session, SaysWhereItLookedWhenNobodyAnswers) {
  auto session = Session::open_with({.node = "127.0.0.1:1", .first_backoff_ms = 1}, testing::trusting_verifier());
  Heard heard = hear(*session, question("a"));
  EXPECT_EQ(heard.error.code, Code::kNotReady);
  EXPECT_NE(heard.error.message.find("127.0.0.1:1"), std::string::npos) << heard.error.message;
  EXPECT_NE(heard.error.message.find("./dev up"), std::string::npos);
}

// Takes a connection and says nothing for a while, then passes everything on to `node`.
class SlowWay {
 public:
  explicit SlowWay(const std::string& node) : door_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in own = loopback(0);
    socklen_t size = sizeof own;
    EXPECT_EQ(::bind(door_.get(), reinterpret_cast<sockaddr*>(&own), size), 0);
    EXPECT_EQ(::listen(door_.get(), 16), 0);
    EXPECT_EQ(::getsockname(door_.get(), reinterpret_cast<sockaddr*>(&own), &size), 0);
    port_ = ntohs(own.sin_port);
    relay_ = std::jthread([this, to = std::stoi(node.substr(node.rfind(':') + 1))](std::stop_token stop) {
      while (!stop.stop_requested()) {
        pollfd waiting{door_.get(), POLLIN, 0};
        if (::poll(&waiting, 1, 20) == 1) serve(os::Fd(::accept(door_.get(), nullptr, nullptr)), to, stop);
      }
    });
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  static constexpr int kDelayMs = 1'500;  // longer than gRPC's longest pause between attempts

 private:
  static sockaddr_in loopback(int port) {
    sockaddr_in out{};
    out.sin_family = AF_INET;
    out.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    out.sin_port = htons(static_cast<uint16_t>(port));
    return out;
  }
  static void serve(os::Fd client, int to, const std::stop_token& stop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(kDelayMs));
    os::Fd node(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in there = loopback(to);
    if (::connect(node.get(), reinterpret_cast<const sockaddr*>(&there), sizeof there) != 0) return;
    std::vector<char> buffer(1 << 16);
    while (!stop.stop_requested()) {
      pollfd both[2] = {{client.get(), POLLIN, 0}, {node.get(), POLLIN, 0}};
      ::poll(both, 2, 20);
      for (int i = 0; i < 2; ++i) {
        if (both[i].revents == 0) continue;
        const ssize_t got = ::read(both[i].fd, buffer.data(), buffer.size());
        if (got <= 0 || ::write(both[1 - i].fd, buffer.data(), static_cast<size_t>(got)) != got) return;
      }
    }
  }

  os::Fd door_;
  int port_ = 0;
  std::jthread relay_;
};

TEST(Session, ReachesANodeThatTakesItsTimeToAnswerAConnection) {
  FakeNode node(testing::echo_script);
  SlowWay way(node.address());
  auto session = Session::open_with({.node = way.address()}, testing::trusting_verifier());
  const Heard heard = hear(*session, question("a"));
  EXPECT_TRUE(heard.complete) << heard.error.message;
}

TEST(Session, SealsNothingToANodeThatThePolicyRefuses) {
  FakeNode node(testing::echo_script);
  auto session = Session::open_with({.node = node.address()}, testing::refusing_verifier());
  EXPECT_EQ(hear(*session, question("a")).error.code, Code::kPermissionDenied);
  EXPECT_EQ(node.requests(), 0);
  EXPECT_EQ(session->last_node(), nullptr);
}

}  // namespace
}  // namespace tie::client
