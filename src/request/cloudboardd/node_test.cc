#include "request/cloudboardd/node.h"

#include <gtest/gtest.h>

#include <future>

#include "request/cloudboardd/testing.h"
#include "store.pb.h"

namespace tie::request::cloudboard {
namespace {

using namespace testing;

// What a client would see of its call.
struct Recorder : ClientStream {
  int reads = 0;
  std::vector<v1::InvokeResponse> got;
  std::optional<Error> status;
  std::promise<void> finished;
  void read_next() override { ++reads; }
  void send(v1::InvokeResponse message) override { got.push_back(std::move(message)); }
  size_t queued_bytes() const override { return queued; }
  int64_t stalled_ms() const override { return 0; }
  size_t queued = 0;  // the loop's
  void finish(const Error& error, bool) override {
    if (status) return;
    status = error;
    finished.set_value();
  }
};

struct NodeTest : ::testing::Test {
  TempDir dir;
  FakeDaemon::Serve helper_body = [](os::Fd connection, int) { echo_helper(std::move(connection)); };
  FakeDaemon helpers{dir.path + "/helper.sock",
                     [this](os::Fd connection, int number) { helper_body(std::move(connection), number); }};
  FakeDaemon authorize{dir.path + "/authorize.sock",
                       [](os::Fd connection, int) { authorize_all(std::move(connection)); }};
  std::unique_ptr<EventLoop> loop = std::move(*EventLoop::create());
  std::unique_ptr<Node> node;
  std::thread thread;
  std::string session;
  v1::RequestOutcomes outcomes_;
  bool serving = false;

  void SetUp() override {
    NodeConfig config{.helper_socket = dir.path + "/helper.sock",
                      .authorize_socket = dir.path + "/authorize.sock",
                      .claims_socket = dir.path + "/none.sock",
                      .state_dir = dir.path + "/state",
                      .cache_socket = dir.path + "/cache.sock",
                      .prewarmed = 0,
                      .max_requests = 4};
    node = std::move(*Node::create(*loop, config));
    node->start({.serving = [this](bool now) { serving = now; }});
    thread = std::thread([this] { loop->run(); });
    on_loop([this] {
      (void)node->publish_keys(one_key());
      session = node->register_controller({});
    });
    set_limit(4);
  }
  void TearDown() override {
    loop->stop();
    thread.join();
    node.reset();
  }
  void on_loop(std::function<void()> what) { run_on(*loop, what); }
  uint32_t set_limit(uint32_t limit, uint32_t wait_ms = 0) {
    v1::UpdateHealthStatusRequest request;
    request.set_session_id(session);
    request.set_state(limit > 0 ? v1::READY : v1::BUSY);
    request.set_max_requests(limit);
    request.set_wait_ms(wait_ms);
    std::promise<uint32_t> left;
    loop->post([&] {
      node->update_health(request, [&](Result<v1::UpdateHealthStatusReply> reply) {
        if (reply) outcomes_ = reply->outcomes();
        left.set_value(reply ? reply->in_flight() : 9999);
      });
    });
    return left.get_future().get();
  }
  v1::RequestOutcomes outcomes() {
    set_limit(4);
    return outcomes_;
  }
  struct Call {
    std::shared_ptr<Recorder> client = std::make_shared<Recorder>();
    std::shared_ptr<Request> request;
  };
  Call begin(const std::string& principal = "") {
    Call call;
    auto slot = node->admit();
    EXPECT_TRUE(slot.has_value());
    on_loop([&] { call.request = node->begin_request(call.client, std::move(*slot), principal); });
    return call;
  }
  void say(Call& call, const v1::InvokeRequest& message) {
    on_loop([&] { call.request->on_message(message); });
  }
  void open(Call& call, const std::string& enc) {
    v1::InvokeRequest setup, parameters;
    setup.mutable_setup()->set_protocol_version(1);
    parameters.mutable_parameters()->set_clear_parameters(clear_parameters(enc));
    say(call, setup);
    say(call, parameters);
  }
  void chunk(Call& call, const std::string& sealed, bool final) {
    v1::InvokeRequest message;
    message.mutable_chunk()->set_sealed(sealed);
    message.mutable_chunk()->set_final(final);
    say(call, message);
  }
  Code wait(Call& call) {
    if (call.client->finished.get_future().wait_for(std::chrono::seconds(5)) != std::future_status::ready)
      return Code::kDeadline;
    Code code{};
    on_loop([&] {
      code = call.client->status->code;
      call.request.reset();
    });
    return code;
  }
  bool in_flight_becomes(uint32_t count) {
    for (Deadline deadline = Deadline::in_ms(30'000); !deadline.passed(); ::usleep(2000)) {
      uint32_t now = 0;
      on_loop([&] { now = node->load_level().current_requests(); });
      if (now == count) return true;
    }
    return false;
  }
};

// The store hears the principal from here, on a connection that the helper then holds.
TEST_F(NodeTest, TheHelperGetsTheStoresConnectionWithItsPrincipalStated) {
  std::promise<std::string> stated;
  std::promise<std::string> said_by_holder;
  FakeDaemon store(dir.path + "/cache.sock", [&](os::Fd connection, int) {
    auto bind = os::receive_message<v1::StoreRequest>(connection.get(), 4096, kLong);
    stated.set_value(bind && bind->message.has_bind() ? bind->message.bind().principal() : "nothing");
    auto next = os::receive_message<v1::StoreRequest>(connection.get(), 4096, kLong);
    said_by_holder.set_value(next ? next->message.get().entry_id() : "nothing");
  });
  helper_body = [](os::Fd connection, int) {
    Puppet puppet;
    (void)say_warm(connection.get(), puppet);
    auto got = os::receive_message<v1::ToHelper>(connection.get(), 4 << 20, kLong, 1);
    if (!got || !got->message.has_start() || got->fds.size() != 1) return;
    v1::StoreRequest request;
    request.mutable_get()->set_entry_id("from the app");
    (void)os::send_message(got->fds[0].get(), request, kLong);
    (void)os::receive_message<v1::ToHelper>(connection.get(), 4 << 20, kLong, 1);
  };
  Call call = begin(std::string(32, 'p'));
  open(call, std::string(64, 'e'));
  EXPECT_EQ(stated.get_future().get(), std::string(32, 'p'));
  EXPECT_EQ(said_by_holder.get_future().get(), "from the app");
  on_loop([&] { call.request->on_client_gone(); });
}

TEST_F(NodeTest, PassesCiphertextBothWaysAndEndsWithOk) {
  Call call = begin();
  open(call, "enc-1");
  chunk(call, "one", false);
  chunk(call, "two", true);
  EXPECT_EQ(wait(call), Code::kOk);
  ASSERT_EQ(call.client->got.size(), 4u);
  EXPECT_TRUE(call.client->got[0].has_setup_ack());
  EXPECT_EQ(call.client->got[1].response_header().salt(), std::string(32, 's'));
  EXPECT_EQ(call.client->got[2].chunk().sealed(), "one");
  EXPECT_EQ(call.client->got[3].chunk().sealed(), "two");
  EXPECT_TRUE(call.client->got[3].chunk().final());
  EXPECT_TRUE(in_flight_becomes(0));
}

TEST_F(NodeTest, AReplayIsRefusedEvenAfterTheFirstFailed) {
  Call first = begin();
  open(first, "enc-1");
  v1::InvokeRequest terminate;
  terminate.mutable_terminate();
  say(first, terminate);
  EXPECT_EQ(wait(first), Code::kCancelled);
  Call second = begin();
  open(second, "enc-1");
  EXPECT_EQ(wait(second), Code::kReplayed);
}

TEST_F(NodeTest, TheControllerHearsHowRequestsEnded) {
  Call done = begin();
  open(done, "enc-1");
  chunk(done, "all", true);
  EXPECT_EQ(wait(done), Code::kOk);
  Call replayed = begin();
  open(replayed, "enc-1");
  EXPECT_EQ(wait(replayed), Code::kReplayed);
  Call gone = begin();
  on_loop([&] { gone.request->on_client_gone(); });
  EXPECT_EQ(wait(gone), Code::kCancelled);
  ASSERT_TRUE(in_flight_becomes(0));
  set_limit(0);
  EXPECT_FALSE(node->admit().has_value());
  v1::RequestOutcomes told = outcomes();
  EXPECT_EQ(told.completed(), 1u);
  EXPECT_EQ(told.refused_replay(), 1u);
  EXPECT_EQ(told.refused_busy(), 1u);
  EXPECT_EQ(told.cancelled(), 1u);
  EXPECT_EQ(told.refused_key() + told.refused_request() + told.failed() + told.cut(), 0u);
}

TEST_F(NodeTest, AnUnknownKeyIsRefused) {
  on_loop([this] { (void)node->publish_keys(one_key(std::string(32, 'x'))); });
  Call call = begin();
  open(call, "enc");
  EXPECT_EQ(wait(call), Code::kKeyUnknownOrExpired);
}

TEST_F(NodeTest, AKeyWhoseRecordIsGoneIsReportedAndRefused) {
  std::string id(32, 'x');
  v1::PublishKeysReply reply;
  on_loop([&] { reply = *node->publish_keys(one_key(id, true)); });
  ASSERT_EQ(reply.unrestorable_key_ids_size(), 1);
  EXPECT_EQ(reply.unrestorable_key_ids(0), id);
}

TEST_F(NodeTest, HelperRefusalsBecomeTheCallsStatus) {
  helper_body = [](os::Fd connection, int) {
    Puppet puppet;
    (void)say_warm(connection.get(), puppet);
    (void)os::receive_frame(connection.get(), 1 << 20, 1, kLong);
    v1::FromHelper failed;
    failed.mutable_failed()->set_code(v1::UNAUTHENTICATED);
    failed.mutable_failed()->set_message("text that a compromised helper would like to send in clear");
    (void)os::send_message(connection.get(), failed, kLong);
    (void)os::receive_frame(connection.get(), 1 << 20, 1, kLong);
  };
  Call call = begin();
  open(call, "enc");
  EXPECT_EQ(wait(call), Code::kUnauthenticated);
  EXPECT_EQ(call.client->status->message, error_info(Code::kUnauthenticated).sentence);
}

TEST_F(NodeTest, AHelperThatDiesBreaksItsAnswer) {
  helper_body = [](os::Fd connection, int) {
    Puppet puppet;
    (void)say_warm(connection.get(), puppet);
    (void)os::receive_frame(connection.get(), 1 << 20, 1, kLong);
  };
  Call call = begin();
  open(call, "enc");
  EXPECT_EQ(wait(call), Code::kInternal);
  EXPECT_TRUE(in_flight_becomes(0));
}

// As one that somebody stopped after it was warm.
TEST_F(NodeTest, AHelperThatNeverSpeaksIsGivenUpWhileTheClientCanTryAgain) {
  std::promise<bool> killed;
  helper_body = [&](os::Fd connection, int) {
    Puppet puppet;
    (void)say_warm(connection.get(), puppet);
    killed.set_value(puppet.was_killed(20'000));
  };
  Call call = begin();
  open(call, "enc");
  chunk(call, "all", true);
  auto check_in = [&](int64_t ms) { on_loop([&] { call.request->check_deadlines(monotonic_ms() + ms); }); };
  check_in(kHelperStartMs - 5'000);
  auto ended = [&] {
    bool has_status = false;
    on_loop([&] { has_status = call.client->status.has_value(); });
    return has_status;
  };
  EXPECT_FALSE(ended()) << "slow is not silent";
  // It counts from when the helper was given the request.
  for (Deadline limit = Deadline::in_ms(20'000); !ended() && !limit.passed(); ::usleep(2000))
    check_in(kHelperStartMs + 1'000);
  ASSERT_EQ(wait(call), Code::kNotReady);
  EXPECT_TRUE(error_info(Code::kNotReady).retryable);
  EXPECT_TRUE(killed.get_future().get());
}

TEST_F(NodeTest, TheCountFallsOnlyWhenTheHelperHasExitedAndAStubbornOneIsKilled) {
  std::promise<void> said_final;
  std::atomic<bool> killed = false;
  helper_body = [&](os::Fd connection, int) {
    Puppet puppet;
    (void)say_warm(connection.get(), puppet);
    (void)os::receive_frame(connection.get(), 1 << 20, 1, kLong);
    v1::FromHelper out;
    out.mutable_header()->set_salt("s");
    (void)os::send_message(connection.get(), out, kLong);
    out.mutable_chunk()->set_final(true);
    (void)os::send_message(connection.get(), out, kLong);
    said_final.set_value();
    killed = puppet.was_killed(5000);  // it does not exit by itself
  };
  Call call = begin();
  open(call, "enc");
  EXPECT_EQ(wait(call), Code::kOk);
  said_final.get_future().wait();
  EXPECT_EQ(set_limit(0, 100), 1u) << "the answer is out, but its process lives";
  EXPECT_EQ(set_limit(0, 5000), 0u);
  EXPECT_TRUE(in_flight_becomes(0));
  for (int i = 0; i < 100 && !killed; ++i) ::usleep(5000);
  EXPECT_TRUE(killed);
}

TEST_F(NodeTest, AClientThatGoesAwayCancelsItsHelper) {
  std::promise<bool> cancelled;
  helper_body = [&](os::Fd connection, int) {
    Puppet puppet;
    (void)say_warm(connection.get(), puppet);
    (void)os::receive_frame(connection.get(), 1 << 20, 1, kLong);
    auto got = os::receive_message<v1::ToHelper>(connection.get(), 1 << 20, kLong);
    cancelled.set_value(got && got->message.has_cancel());
  };
  Call call = begin();
  open(call, "enc");
  ::usleep(50'000);
  on_loop([&] { call.request->on_client_gone(); });
  EXPECT_EQ(wait(call), Code::kCancelled);
  EXPECT_TRUE(cancelled.get_future().get());
  EXPECT_TRUE(in_flight_becomes(0));
}

TEST_F(NodeTest, LimitsOnChunkAndRequest) {
  Call big = begin();
  open(big, "enc-big");
  chunk(big, std::string((1 << 20) + 65, 'x'), false);
  EXPECT_EQ(wait(big), Code::kTooLarge);
  Call many = begin();
  open(many, "enc-many");
  for (int i = 0; i < 12 && !many.client->status; ++i) {
    int reads = 0;
    for (Deadline deadline = Deadline::in_ms(30'000); reads < i + 3 && !deadline.passed(); ::usleep(500))
      on_loop([&] { reads = many.client->status ? 99 : many.client->reads; });
    chunk(many, std::string(1 << 20, 'x'), false);
  }
  EXPECT_EQ(wait(many), Code::kTooLarge);
}

TEST_F(NodeTest, TheClientIsNotReadWhileItsHelperTakesNothing) {
  helper_body = [](os::Fd connection, int) {
    Puppet puppet;
    (void)say_warm(connection.get(), puppet);
    ::usleep(500'000);
  };
  Call call = begin();
  open(call, "enc");
  int sent = 0;
  for (; sent < 9; ++sent) {
    int reads = 0;
    on_loop([&] { reads = call.client->reads; });
    if (reads <= sent + 2) break;  // setup, parameters and each chunk were asked for one at a time
    chunk(call, std::string(1 << 20, 'x'), false);
  }
  EXPECT_LE(sent, 3);
  wait(call);
}

// The whole answer was read from the helper at once, but its client took a part only: the rest waits where no socket
// tells of it.
TEST_F(NodeTest, AClientThatTookNothingForAWhileGetsTheWholeAnswer) {
  constexpr size_t kPieces = 5;
  helper_body = [](os::Fd connection, int) {
    Puppet puppet;
    (void)say_warm(connection.get(), puppet);
    (void)os::receive_frame(connection.get(), 1 << 20, 1, kLong);
    Bytes all;
    for (size_t i = 0; i <= kPieces; ++i) {
      v1::FromHelper message;
      if (i == 0) message.mutable_header()->set_salt(std::string(32, 's'));
      if (i > 0) message.mutable_chunk()->set_sealed(std::string(i, 'x'));
      if (i == kPieces) message.mutable_chunk()->set_final(true);
      const std::string text = message.SerializeAsString();
      append_u32_be(all, static_cast<uint32_t>(text.size()));
      append(all, as_bytes(text));
    }
    (void)!::write(connection.get(), all.data(), all.size());
    while (os::receive_frame(connection.get(), 1 << 20, 1, kLong)) {
    }
  };
  Call call = begin();
  on_loop([&] { call.client->queued = kPauseHelperBytes; });
  open(call, "enc");
  chunk(call, "question", true);
  for (size_t taken = 1; taken <= kPieces; ++taken) {  // the acknowledgement of the setup comes before
    size_t got = 0;
    for (Deadline deadline = Deadline::in_ms(30'000); got < taken + 1 && !deadline.passed(); ::usleep(500))
      on_loop([&] { got = call.client->got.size(); });
    ASSERT_EQ(got, taken + 1);
    on_loop([&] {
      call.client->queued = 0;
      call.request->on_taken();
      call.client->queued = kPauseHelperBytes;  // before what is held is looked at: one piece each time
    });
  }
  EXPECT_EQ(wait(call), Code::kOk);
  EXPECT_EQ(call.client->got.size(), kPieces + 2);
}

TEST_F(NodeTest, LosingTheControllerStopsServingAtOnceAndKeepsWhatRuns) {
  EXPECT_TRUE(node->admit().has_value());
  on_loop([this] { node->controller_lost(session); });
  EXPECT_EQ(node->admit().error().code, Code::kNotReady);
  on_loop([this] { EXPECT_FALSE(serving); });
  EXPECT_EQ(set_limit(4), 9999u) << "a lost session cannot set limits";
  on_loop([this] { session = node->register_controller({}); });
  set_limit(4);
  EXPECT_TRUE(node->admit().has_value());
}

TEST_F(NodeTest, AnOldRegistrationsEndDoesNotTouchTheNewOne) {
  std::string old = session;
  on_loop([this] { session = node->register_controller({}); });
  set_limit(2);
  on_loop([&] { node->controller_lost(old); });
  EXPECT_TRUE(node->admit().has_value());
}

TEST_F(NodeTest, PrincipalsAreStableWithinABootAndSayNothing) {
  EXPECT_EQ(node->principal_of(""), "");
  EXPECT_EQ(node->principal_of("Bearer a").size(), 32u);
  EXPECT_EQ(node->principal_of("Bearer a"), node->principal_of("Bearer a"));
  EXPECT_NE(node->principal_of("Bearer a"), node->principal_of("Bearer b"));
}

}  // namespace
}  // namespace tie::request::cloudboard
