#include "os/unix_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "os/framed_message.h"

namespace tie::os {
namespace {

class UnixSocket : public ::testing::Test {
 protected:
  UnixSocket() {
    char name[] = "/tmp/tie-sock-test-XXXXXX";
    dir_ = ::mkdtemp(name);
  }
  ~UnixSocket() override { std::filesystem::remove_all(dir_); }
  std::string path(const char* name) const { return dir_ + "/" + name; }
  std::string dir_;
};

Deadline soon() {
  return Deadline::in_ms(2000);
}

TEST_F(UnixSocket, ListenReplacesAStaleSocketButNothingElse) {
  {
    auto first = listen_unix(path("s"));
    ASSERT_TRUE(first);
  }
  auto again = listen_unix(path("s"));
  ASSERT_TRUE(again);
  ASSERT_TRUE(write_file_atomic(path("file"), as_bytes("precious")));
  auto refused = listen_unix(path("file"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kAlreadyExists);
}

TEST_F(UnixSocket, PathLengthIsCheckedAtTheEdge) {
  std::string name(kMaxSocketPathBytes - dir_.size() - 1, 'x');
  EXPECT_TRUE(listen_unix(path(name.c_str())));
  EXPECT_EQ(listen_unix(path((name + "x").c_str())).error().code, Code::kBadRequest);
  EXPECT_EQ(listen_unix(std::string("\0abstract", 9)).error().code, Code::kBadRequest);
  EXPECT_EQ(connect_unix("", soon()).error().code, Code::kBadRequest);
}

TEST_F(UnixSocket, ConnectionsCarryCredentials) {
  auto listener = listen_unix(path("s"));
  ASSERT_TRUE(listener);
  auto client = connect_unix(path("s"), soon());
  ASSERT_TRUE(client);
  auto server = accept_unix(listener->get(), soon());
  ASSERT_TRUE(server);
  auto peer = peer_credentials(server->get());
  ASSERT_TRUE(peer);
  EXPECT_EQ(peer->pid, ::getpid());
  EXPECT_EQ(peer->uid, ::geteuid());
}

TEST_F(UnixSocket, AcceptEndsAtItsDeadline) {
  auto listener = listen_unix(path("s"));
  ASSERT_TRUE(listener);
  EXPECT_EQ(accept_unix(listener->get(), Deadline::in_ms(20)).error().code, Code::kDeadline);
}

TEST(Frame, CarriesBytesAndDescriptorsInOrder) {
  auto pair = socket_pair();
  ASSERT_TRUE(pair);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Fd reader(ends[0]), writer(ends[1]);
  int passed[] = {writer.get()};
  ASSERT_TRUE(send_frame(pair->first.get(), as_bytes("one"), passed, soon()));
  ASSERT_TRUE(send_frame(pair->first.get(), {}, {}, soon()));
  auto one = receive_frame(pair->second.get(), 10, 1, soon());
  ASSERT_TRUE(one);
  EXPECT_EQ(to_string(one->payload), "one");
  ASSERT_EQ(one->fds.size(), 1u);
  EXPECT_TRUE(::fcntl(one->fds[0].get(), F_GETFD) & FD_CLOEXEC);
  ASSERT_EQ(::write(one->fds[0].get(), "x", 1), 1);
  char c;
  EXPECT_EQ(::read(reader.get(), &c, 1), 1);
  auto empty = receive_frame(pair->second.get(), 10, 0, soon());
  ASSERT_TRUE(empty);
  EXPECT_TRUE(empty->payload.empty());
}

TEST(Frame, LargerThanTheSocketBufferGoesThroughWhole) {
  auto pair = socket_pair();
  ASSERT_TRUE(pair);
  Bytes much(5 << 20);
  for (size_t i = 0; i < much.size(); ++i) much[i] = static_cast<uint8_t>(i * 7 + i / 4096);
  std::thread sender([&] { EXPECT_TRUE(send_frame(pair->first.get(), much, {}, soon())); });
  auto got = receive_frame(pair->second.get(), much.size(), 0, soon());
  sender.join();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->payload, much);
}

TEST(Frame, OverTheLimitIsRefusedBeforeItsBytesAreRead) {
  auto pair = socket_pair();
  ASSERT_TRUE(pair);
  Bytes header{0xff, 0xff, 0xff, 0xff};
  ASSERT_TRUE(write_all(pair->first.get(), header, soon()));
  EXPECT_EQ(receive_frame(pair->second.get(), 1 << 20, 0, soon()).error().code, Code::kTooLarge);
}

TEST(Frame, UnexpectedDescriptorsAreRefusedAndClosed) {
  auto pair = socket_pair();
  ASSERT_TRUE(pair);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Fd reader(ends[0]), writer(ends[1]);
  int passed[] = {writer.get()};
  ASSERT_TRUE(send_frame(pair->first.get(), as_bytes("x"), passed, soon()));
  writer.close();
  EXPECT_EQ(receive_frame(pair->second.get(), 10, 0, soon()).error().code, Code::kCorrupt);
  char c;
  EXPECT_EQ(::read(reader.get(), &c, 1), 0) << "the passed write end must be closed";
}

TEST(Frame, ACutFrameAndAnEmptyStreamAreClosedConnections) {
  auto pair = socket_pair();
  ASSERT_TRUE(pair);
  ASSERT_TRUE(write_all(pair->first.get(), Bytes{0, 0, 0, 9, 1, 2}, soon()));
  pair->first.close();
  auto cut = receive_frame(pair->second.get(), 10, 0, soon());
  EXPECT_EQ(cut.error().code, Code::kIo);
  EXPECT_EQ(cut.error().message, "connection closed");
}

struct FakeMessage {
  std::string text;
  bool SerializeToString(std::string* out) const {
    *out = text;
    return true;
  }
  bool ParseFromArray(const void* data, int size) {
    text.assign(static_cast<const char*>(data), static_cast<size_t>(size));
    return text != "bad";
  }
};

TEST(FramedMessage, RoundTripsAndRefusesWhatDoesNotParse) {
  auto pair = socket_pair();
  ASSERT_TRUE(pair);
  ASSERT_TRUE(send_message(pair->first.get(), FakeMessage{"hello"}, soon()));
  auto got = receive_message<FakeMessage>(pair->second.get(), 100, soon());
  ASSERT_TRUE(got);
  EXPECT_EQ(got->message.text, "hello");
  ASSERT_TRUE(send_message(pair->first.get(), FakeMessage{"bad"}, soon()));
  EXPECT_EQ(receive_message<FakeMessage>(pair->second.get(), 100, soon()).error().code, Code::kCorrupt);
}

}  // namespace
}  // namespace tie::os
