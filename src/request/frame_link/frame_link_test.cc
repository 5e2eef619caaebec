#include "request/frame_link/frame_link.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace tie::request {
namespace {

struct Pair {
  FrameLink a, b;
};

Pair make_pair(FrameLimits limits = {.max_fds = 2}) {
  auto sockets = os::socket_pair();
  tie_check(sockets.has_value(), "socketpair");
  return {FrameLink(std::move(sockets->first), limits), FrameLink(std::move(sockets->second), limits)};
}

TEST(FrameLink, GivesFramesInOrderHoweverTheyWereCut) {
  auto [a, b] = make_pair();
  Bytes wire;
  for (uint8_t i = 0; i < 50; ++i) {
    append_u32_be(wire, i);
    wire.insert(wire.end(), i, i);
  }
  size_t frames = 0;
  for (uint8_t byte : wire) {
    ASSERT_EQ(::write(a.fd(), &byte, 1), 1);
    auto frame = b.next();
    ASSERT_TRUE(frame.has_value());
    if (!*frame) continue;
    EXPECT_EQ((*frame)->payload, Bytes(frames, static_cast<uint8_t>(frames)));
    ++frames;
  }
  EXPECT_EQ(frames, 50u);
}

TEST(FrameLink, SaysWhatItHoldsThatNoPollTellsOf) {
  auto [a, b] = make_pair({.max_frame_bytes = 100});
  Bytes wire;
  for (uint8_t size : {3, 0, 2}) {
    append_u32_be(wire, size);
    wire.insert(wire.end(), size, 'x');
  }
  append_u32_be(wire, 5);  // begun only
  ASSERT_EQ(::write(a.fd(), wire.data(), wire.size()), static_cast<ssize_t>(wire.size()));
  EXPECT_FALSE(b.holds_frame()) << "nothing was read yet";
  for (bool more : {true, true, false}) {
    ASSERT_TRUE(b.next()->has_value());
    EXPECT_EQ(b.holds_frame(), more);
  }
  ASSERT_FALSE(b.next()->has_value());
  wire.assign(5, 'x');
  append_u32_be(wire, 101);
  ASSERT_EQ(::write(a.fd(), wire.data(), wire.size()), static_cast<ssize_t>(wire.size()));
  ASSERT_TRUE(b.next()->has_value());
  EXPECT_TRUE(b.holds_frame()) << "a fault is something to report";
  EXPECT_EQ(b.next().error().code, Code::kTooLarge);
}

TEST(FrameLink, QueuesWhatThePeerDoesNotReadAndDeliversItLater) {
  auto [a, b] = make_pair({.max_frame_bytes = 1 << 20, .max_queued_bytes = 8 << 20});
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(a.send(Bytes(1 << 20, static_cast<uint8_t>(i))).has_value());
  EXPECT_TRUE(a.wants_write());
  for (int i = 0; i < 7;) {
    auto frame = b.next();
    ASSERT_TRUE(frame.has_value());
    if (*frame) {
      EXPECT_EQ((*frame)->payload, Bytes(1 << 20, static_cast<uint8_t>(i)));
      ++i;
    }
    ASSERT_TRUE(a.flush().has_value());
  }
  EXPECT_EQ(a.queued_bytes(), 0u);
}

TEST(FrameLink, RefusesToQueueWithoutEnd) {
  auto [a, b] = make_pair({.max_queued_bytes = 2 << 20});
  Result<void> sent;
  for (int i = 0; i < 8 && sent; ++i) sent = a.send(Bytes(1 << 20));
  ASSERT_FALSE(sent.has_value());
  EXPECT_EQ(sent.error().code, Code::kTooLarge);
}

TEST(FrameLink, DescriptorsArriveWithTheFrameTheyWereSentWith) {
  auto [a, b] = make_pair();
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  os::Fd read_end(pipe_fds[0]), write_end(pipe_fds[1]);
  ASSERT_TRUE(a.send(as_bytes("one")).has_value());
  ASSERT_TRUE(a.send(as_bytes("two"), std::array{write_end.get()}).has_value());
  ASSERT_TRUE(a.send(as_bytes("three")).has_value());
  for (const char* text : {"one", "two", "three"}) {
    auto frame = b.next();
    if (frame && !*frame) frame = b.next();
    ASSERT_TRUE(frame.has_value() && frame->has_value());
    EXPECT_EQ(as_text((*frame)->payload), text);
    EXPECT_EQ((*frame)->fds.size(), std::string(text) == "two" ? 1u : 0u);
  }
}

TEST(FrameLink, RefusesDescriptorsThatItDoesNotExpect) {
  auto [a, b] = make_pair({.max_fds = 0});
  ASSERT_TRUE(a.send(as_bytes("x"), std::array{0}).has_value());
  auto frame = b.next();
  ASSERT_FALSE(frame.has_value());
  EXPECT_EQ(frame.error().code, Code::kCorrupt);
}

TEST(FrameLink, RefusesAFrameOverTheLimitOnItsHeader) {
  auto [a, b] = make_pair({.max_frame_bytes = 100});
  Bytes header;
  append_u32_be(header, 101);
  ASSERT_EQ(::write(a.fd(), header.data(), header.size()), 4);
  EXPECT_EQ(b.next().error().code, Code::kTooLarge);
}

TEST(FrameLink, GivesTheLastFrameBeforeItReportsTheClose) {
  auto [a, b] = make_pair();
  ASSERT_TRUE(a.send(as_bytes("last")).has_value());
  a.close();
  auto frame = b.next();
  ASSERT_TRUE(frame.has_value() && frame->has_value());
  EXPECT_EQ(as_text((*frame)->payload), "last");
  ASSERT_TRUE(b.next().has_value());
  EXPECT_EQ(b.next().error().code, Code::kIo);
}

}  // namespace
}  // namespace tie::request
