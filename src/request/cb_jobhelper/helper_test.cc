#include "request/cb_jobhelper/helper.h"

#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <thread>

#include "os/framed_message.h"
#include "request/cb_jobhelper/testing.h"

namespace tie::request::jobhelper {
namespace {

using testing::Client;
using End = v1::FromApp::EndOfResponse;

// The helper's loop in a thread; this test holds the other ends of its three connections.
struct HelperTest : ::testing::Test {
  os::Fd cloudboard, app, keys;
  std::thread helper;
  Client client;
  Deadline deadline = Deadline::in_ms(5000);

  void SetUp() override {
    auto a = os::socket_pair(), b = os::socket_pair(), c = os::socket_pair();
    cloudboard = std::move(a->first);
    app = std::move(b->first);
    keys = std::move(c->first);
    Connections connections{std::move(a->second), std::move(b->second), std::move(c->second)};
    helper = std::thread([held = std::move(connections)]() mutable { (void)serve(std::move(held)); });
  }
  void TearDown() override {
    cloudboard.close();
    helper.join();
  }
  template <typename M>
  void say(const os::Fd& to, const M& message) {
    ASSERT_TRUE(os::send_message(to.get(), message, deadline).has_value());
  }
  template <typename M>
  M hear(const os::Fd& from) {
    auto got = os::receive_message<M>(from.get(), kMaxFrameBytes, deadline);
    EXPECT_TRUE(got.has_value()) << got.error().message;
    return got ? got->message : M();
  }
  void begin(const std::string& body) {
    say(cloudboard, client.start());
    say(cloudboard, client.chunk(body, true));
    EXPECT_EQ(hear<v1::DecapRequest>(keys).ticket(), std::string(32, 't'));
    say(keys, client.keys_reply());
  }
};

TEST_F(HelperTest, ServesARequestOverItsThreeConnections) {
  begin("hello");
  EXPECT_TRUE(hear<v1::ToApp>(app).has_parameters());
  EXPECT_EQ(hear<v1::ToApp>(app).input().data(), "hello");
  say(app, testing::app_event("hi"));
  say(app, testing::app_end(End::OK));
  std::vector<v1::FromHelper> got;
  do got.push_back(hear<v1::FromHelper>(cloudboard));
  while (!got.back().chunk().final() && got.size() < 5);
  auto events = client.open(got);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].event().text(), "hi");
  EXPECT_EQ(events[1].final().status(), v1::FinalSummary::OK);
}

TEST_F(HelperTest, AppDeathGivesASealedErrorWithinTwoSeconds) {
  begin("hello");
  hear<v1::ToApp>(app);
  app.close();
  int64_t start_ms = monotonic_ms();
  std::vector<v1::FromHelper> got{hear<v1::FromHelper>(cloudboard), hear<v1::FromHelper>(cloudboard)};
  EXPECT_LT(monotonic_ms() - start_ms, 2000);
  EXPECT_EQ(client.open(got).back().final().status(), v1::FinalSummary::INTERNAL_ERROR);
}

TEST_F(HelperTest, CloudboardGoingAwayTearsTheAppDownAtOnce) {
  begin("hello");
  hear<v1::ToApp>(app);
  hear<v1::ToApp>(app);
  cloudboard.close();
  EXPECT_TRUE(hear<v1::ToApp>(app).has_teardown());
}

TEST_F(HelperTest, AWarmHelperEndsWhenItsAppDies) {
  app.close();
  auto got = os::receive_message<v1::FromHelper>(cloudboard.get(), kMaxFrameBytes, deadline);
  ASSERT_FALSE(got.has_value());
  EXPECT_EQ(got.error().code, Code::kIo);
}

// The key comes late, so the helper stops reading with the last chunk in hand, of which no socket tells any more.
TEST_F(HelperTest, AChunkThatWasReadBeforeTheKeyCameIsNotForgotten) {
  const std::vector<std::string> chunks = {std::string(kMaxBufferedBeforeKeyBytes / 2 + 1000, 'a'),
                                           std::string(kMaxBufferedBeforeKeyBytes / 2, 'b'), "the last"};
  Bytes wire;
  for (const std::string& text : chunks) {
    const std::string message = client.chunk(text, &text == &chunks.back()).SerializeAsString();
    append_u32_be(wire, static_cast<uint32_t>(message.size()));
    append(wire, as_bytes(message));
  }
  say(cloudboard, client.start());
  hear<v1::DecapRequest>(keys);
  for (size_t at = 0; at < wire.size();) {
    const ssize_t sent = ::write(cloudboard.get(), wire.data() + at, wire.size() - at);
    ASSERT_GT(sent, 0);
    at += static_cast<size_t>(sent);
  }
  int unread = 1;
  for (; unread > 0 && !deadline.passed(); ::usleep(500)) ASSERT_EQ(::ioctl(cloudboard.get(), SIOCOUTQ, &unread), 0);
  say(keys, client.keys_reply());
  EXPECT_TRUE(hear<v1::ToApp>(app).has_parameters());
  for (const std::string& text : chunks) {
    const v1::ToApp got = hear<v1::ToApp>(app);
    ASSERT_EQ(got.input().data(), text);
    EXPECT_EQ(got.input().final(), &text == &chunks.back());
  }
}

TEST_F(HelperTest, AnAppThatDoesNotReadHoldsTheClientBack) {
  begin("hello");
  // Far more than all queues together: sending must come to a stop, not grow the helper.
  int sent = 0;
  Client other;
  Result<void> result;
  v1::ToHelper chunk;
  for (; sent < 40; ++sent) {
    // Only the transport is of interest here; the helper stops reading before it would open these.
    chunk.mutable_chunk()->set_sealed(std::string(1 << 20, 'x'));
    result = os::send_message(cloudboard.get(), chunk, Deadline::in_ms(300));
    if (!result) break;
  }
  EXPECT_LT(sent, 10);
}

}  // namespace
}  // namespace tie::request::jobhelper
