#include "request/cloud_app/runtime_stream.h"

#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <filesystem>

#include "os/unix_socket.h"

namespace tie::request::app {
namespace {

int unread_bytes(int socket) {
  int out = 0;
  return ::ioctl(socket, FIONREAD, &out) == 0 ? out : -1;
}

// A runtime that was taken over could keep the connection readable for ever with frames of no meaning. So a call whose
// time is over leaves what it has not read where it is, however much there is; it never reads until there is no more.
TEST(RuntimeStream, WordsThatNeverMakeAMessageDoNotHoldTheCaller) {
  char folder[] = "/tmp/tie-stream-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/runtime.sock";
  auto listener = os::listen_unix(path);
  ASSERT_TRUE(listener) << listener.error().message;
  auto stream = RuntimeStream::connect(path);
  ASSERT_TRUE(stream) << stream.error().message;
  auto peer = os::accept_unix(listener->get(), Deadline::in_ms(10'000));
  ASSERT_TRUE(peer) << peer.error().message;

  std::string words("\0\0\0\x04\0\0\0\0\0", 9);                                    // SETTINGS
  for (int i = 0; i < 8000; ++i) words += std::string("\0\0\0\xfe\0\0\0\0\0", 9);  // of a kind that nobody knows
  ASSERT_TRUE(os::write_all(peer->get(), as_bytes(words), Deadline::in_ms(10'000)));
  const v1::SamplingParams sampling;
  RuntimeCall call;
  call.sampling = &sampling;
  call.deadline_ms = 60'000;
  (*stream)->start(call);
  RuntimeEvent event;
  int before = unread_bytes((*stream)->fd());
  ASSERT_EQ(before, static_cast<int>(words.size())) << "all of it lies ready";
  auto got = (*stream)->next(0, event);
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(*got, RuntimeStream::Got::kNothingYet);
  int after = unread_bytes((*stream)->fd());
  EXPECT_LT(after, before) << "it has read";
  EXPECT_GT(after, 0) << "but not to the end";
  // With time the rest is read, and there is still no message.
  got = (*stream)->next(50, event);
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(*got, RuntimeStream::Got::kNothingYet);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tie::request::app
