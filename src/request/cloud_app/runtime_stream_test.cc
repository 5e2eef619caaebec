#include "request/cloud_app/runtime_stream.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "os/unix_socket.h"

namespace tie::request::app {
namespace {

// A runtime that was taken over and keeps the connection busy with frames of no meaning, for 20 s or until it is
// closed.
void chatter(int listener) {
  auto peer = os::accept_unix(listener, Deadline::in_ms(10'000));
  if (!peer) return;
  const std::string settings("\0\0\0\x04\0\0\0\0\0", 9), unknown("\0\0\0\xfe\0\0\0\0\0", 9);
  if (!os::write_all(peer->get(), as_bytes(settings), Deadline::in_ms(10'000))) return;
  std::string words;  // a write of this size is taken as a whole or not at all
  for (int i = 0; i < 1000; ++i) words += unknown;
  const Deadline limit = Deadline::in_ms(20'000);
  auto talk = [&] {
    while (!limit.passed() && os::write_all(peer->get(), as_bytes(words), limit)) continue;
  };
  std::thread second(talk), third(talk);  // faster than one reader
  talk();
  second.join();
  third.join();
}

TEST(RuntimeStream, WordsThatNeverMakeAMessageDoNotHoldTheCaller) {
  ::signal(SIGPIPE, SIG_IGN);  // the chatter ends when its peer is gone
  char folder[] = "/tmp/tie-stream-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/runtime.sock";
  auto listener = os::listen_unix(path);
  ASSERT_TRUE(listener) << listener.error().message;
  std::thread runtime(chatter, listener->get());
  {
    auto stream = RuntimeStream::connect(path);
    ASSERT_TRUE(stream) << stream.error().message;
    const v1::SamplingParams sampling;
    RuntimeCall call;
    call.sampling = &sampling;
    call.deadline_ms = 60'000;
    (*stream)->start(call);
    RuntimeEvent event;
    for (int i = 0; i < 3; ++i) {
      const Deadline limit = Deadline::in_ms(10'000);
      auto got = (*stream)->next(20, event);
      ASSERT_TRUE(got) << got.error().message;
      EXPECT_EQ(*got, RuntimeStream::Got::kNothingYet);
      EXPECT_FALSE(limit.passed());
    }
  }
  runtime.join();
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tie::request::app
