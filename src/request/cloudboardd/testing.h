// For tests: the neighbours of cloudboardd on the other ends of its sockets, in this process.
#pragma once
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "base/random.h"
#include "cloudboard.pb.h"
#include "cloudboard_control.pb.h"
#include "jobhelper.pb.h"
#include "os/framed_message.h"
#include "os/process.h"
#include "request/cloudboardd/event_loop.h"
#include "wsd.pb.h"

namespace tie::request::cloudboard::testing {

struct TempDir {
  std::string path = (std::filesystem::temp_directory_path() / ("tie-cb-" + random_hex(6))).string();
  TempDir() { std::filesystem::create_directory(path); }
  ~TempDir() { std::filesystem::remove_all(path); }
};

// Does it on the loop's thread, which is another one; returns when it has been done.
inline void run_on(EventLoop& loop, const std::function<void()>& what) {
  std::promise<void> done;
  loop.post([&] {
    what();
    done.set_value();
  });
  done.get_future().wait();
}

// Accepts on a socket and serves each connection in a thread until the peer closes.
class FakeDaemon {
 public:
  using Serve = std::function<void(os::Fd connection, int number)>;
  FakeDaemon(const std::string& socket, Serve serve)
      : listener_(std::move(*os::listen_unix(socket))), serve_(std::move(serve)) {
    accepter_ = std::thread([this] { accept(); });
  }
  ~FakeDaemon() {
    stop_ = true;
    accepter_.join();
    for (auto& fd : sockets_) ::shutdown(fd.get(), SHUT_RDWR);
    for (auto& thread : threads_) thread.join();
  }
  int connections() const { return count_; }

 private:
  void accept() {
    while (!stop_) {
      auto fd = os::accept_unix(listener_.get(), Deadline::in_ms(20));
      if (!fd) continue;
      sockets_.push_back(std::move(*fd->duplicate()));
      // Shut down rather than closed: puppets forked in the meantime hold copies.
      threads_.emplace_back([this, number = count_++, held = std::move(*fd), socket = sockets_.back().get()]() mutable {
        serve_(std::move(held), number);
        ::shutdown(socket, SHUT_RDWR);
      });
    }
  }
  os::Fd listener_;
  Serve serve_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> count_ = 0;
  std::vector<os::Fd> sockets_;
  std::vector<std::thread> threads_;
  std::thread accepter_;
};

// A process that does nothing, in the place of a helper's own: its pidfd is what cloudboardd watches.
class Puppet {
 public:
  Puppet() {
    parent_ = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close_range(3, ~0U, 0);  // a helper holds nothing of cloudboardd's
      for (;;) ::pause();
    }
    pidfd_ = std::move(*os::pidfd_open(pid_));
  }
  ~Puppet() { exit(); }
  void exit() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  // True when somebody else killed it.
  bool was_killed(int64_t wait_ms) {
    return os::pidfd_wait_exit(pidfd_.get(), Deadline::in_ms(wait_ms)).value_or(false);
  }
  int pidfd() const { return pidfd_.get(); }

 private:
  pid_t parent_ = 0, pid_ = 0;
  os::Fd pidfd_;
};

inline const Deadline kLong = Deadline::in_ms(3'600'000);

inline Result<void> say_warm(int socket, const Puppet& puppet) {
  v1::FromHelper warm;
  warm.mutable_warm();
  return os::send_message(socket, warm, kLong, std::array{puppet.pidfd()});
}

// A helper that gives every chunk back as it came, the final one last, then exits.
inline void echo_helper(os::Fd connection) {
  Puppet puppet;
  if (!say_warm(connection.get(), puppet)) return;
  for (;;) {
    auto got = os::receive_message<v1::ToHelper>(connection.get(), 4 << 20, kLong, 1);
    if (!got || got->message.has_cancel()) return;
    v1::FromHelper out;
    if (got->message.has_start()) out.mutable_header()->set_salt(std::string(32, 's'));
    if (got->message.has_chunk()) {
      out.mutable_chunk()->set_sealed(got->message.chunk().sealed());
      out.mutable_chunk()->set_final(got->message.chunk().final());
    }
    if (!os::send_message(connection.get(), out, kLong) || out.chunk().final()) return;
  }
}

// workload_servicesd's authorize socket: says yes to everything.
inline void authorize_all(os::Fd connection) {
  for (;;) {
    auto got = os::receive_message<v1::AuthorizeRequest>(connection.get(), 1 << 20, kLong);
    if (!got || !os::send_message(connection.get(), v1::AuthorizeReply(), kLong)) return;
  }
}

inline std::string key_id() {
  return std::string(32, 'k');
}

inline v1::PublishKeysRequest one_key(const std::string& id = key_id(), bool used_before = false) {
  v1::PublishKeysRequest request;
  auto* bundle = request.add_bundles();
  bundle->set_key_id(id);
  bundle->mutable_kem()->set_expires_unix_ms(static_cast<uint64_t>(wall_clock_ms()) + 3'600'000);
  request.add_accepted_key_ids(id);
  if (used_before) request.add_used_key_ids(id);
  return request;
}

inline std::string clear_parameters(const std::string& enc, const std::string& id = key_id()) {
  v1::ClearParameters p;
  p.set_workload("tie-inference");
  p.set_key_id(id);
  p.set_encapsulated_key(enc);
  p.set_sealed_dek(std::string(48, 'd'));
  p.set_request_id(std::string(32, '0'));
  return p.SerializeAsString();
}

}  // namespace tie::request::cloudboard::testing
