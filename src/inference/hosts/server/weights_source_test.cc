// What a runtime does while the owner looks at the weights in GPU memory: it waits as long as the look gets on.
#include "inference/hosts/server/weights_source.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>

#include "os/framed_message.h"
#include "os/unix_socket.h"
#include "owner.pb.h"

namespace tie::runtime_host {
namespace {

constexpr int64_t kAttachMs = 300;  // less than the look takes
constexpr int64_t kStepMs = 100;
constexpr uint64_t kSteps = 8;

os::Fd sealed(std::string_view text) {
  os::Fd fd = std::move(os::create_memfd("test", 0).value());
  EXPECT_TRUE(os::write_all(fd.get(), as_bytes(text), Deadline::in_ms(1000)));
  EXPECT_TRUE(os::add_seals(fd.get(), os::kSealAll));
  return fd;
}

// Answers each request with how far its look is, by the request's number, until there is none; then with a model on a
// GPU.
class Owner {
 public:
  explicit Owner(std::function<std::optional<uint64_t>(uint64_t)> done_bytes) : done_bytes_(std::move(done_bytes)) {
    char folder[] = "/tmp/tie-attach-XXXXXX";
    folder_ = ::mkdtemp(folder);
    listener_ = std::move(os::listen_unix(path()).value());
    thread_ = std::thread([this] { serve(); });
  }
  ~Owner() {
    stop_.first.close();
    thread_.join();
    std::filesystem::remove_all(folder_);
  }
  std::string path() const { return folder_ + "/weights.sock"; }
  int connections = 0;

 private:
  void serve() {
    while (!os::wait_readable(stop_.second.get(), Deadline::in_ms(0))) {
      auto socket = os::accept_unix(listener_.get(), Deadline::in_ms(20));
      if (!socket) continue;
      ++connections;
      for (uint64_t asked = 0; os::receive_message<v1::OwnerRequest>(socket->get(), 4096, Deadline::in_ms(5000), 0);)
        if (!answer(socket->get(), asked++)) return;
    }
  }
  bool answer(int socket, uint64_t asked) {
    v1::OwnerReply reply;
    const std::optional<uint64_t> done = done_bytes_(asked);
    if (!done) {
      reply.mutable_model()->set_model_id(std::string(32, 'm'));
      reply.mutable_model()->set_gpu_handle(std::string(64, 'h'));
      reply.mutable_model()->set_gpu_bytes(7);
      os::Fd table = sealed("table"), tokenizer = sealed("tokenizer");
      const int fds[] = {table.get(), tokenizer.get()};
      return os::send_message(socket, reply, Deadline::in_ms(1000), fds).has_value();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(kStepMs));
    reply.mutable_error()->set_code(v1::NOT_READY);
    reply.mutable_look()->set_done_bytes(*done);
    reply.mutable_look()->set_all_bytes(1000);
    return os::send_message(socket, reply, Deadline::in_ms(1000)).has_value();
  }

  std::function<std::optional<uint64_t>(uint64_t)> done_bytes_;
  std::string folder_;
  os::Fd listener_;
  std::pair<os::Fd, os::Fd> stop_ = std::move(os::socket_pair().value());
  std::thread thread_;
};

Result<AttachedModel> attach(const Owner& owner) {
  auto stop = os::socket_pair().value();
  return attach_from_owner(owner.path(), "m", Deadline::in_ms(kAttachMs), stop.first.get());
}

TEST(Attach, WaitsOnOneConnectionForALookThatGetsOn) {
  Owner owner([](uint64_t asked) { return asked < kSteps ? std::optional(100 * (asked + 1)) : std::nullopt; });
  auto attached = attach(owner);
  ASSERT_TRUE(attached) << attached.error().message;
  ASSERT_TRUE(attached->gpu);
  EXPECT_EQ(attached->gpu->bytes, 7u);
  EXPECT_EQ(owner.connections, 1) << "a new one would begin the look anew";
}

TEST(Attach, GivesUpOnALookThatStands) {
  Owner owner([](uint64_t) { return 0; });
  const int64_t began_ms = monotonic_ms();
  auto attached = attach(owner);
  ASSERT_FALSE(attached);
  EXPECT_EQ(attached.error().code, Code::kNotReady);
  EXPECT_GE(monotonic_ms() - began_ms, kAttachMs);
}

}  // namespace
}  // namespace tie::runtime_host
