#include "cache/store/store_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "cache/store/store_session.h"
#include "os/framed_message.h"

namespace tie::cache {
namespace {

constexpr size_t kMaxMessageBytes = kMaxManifestBytes + 4096;
constexpr int64_t kMessageMs = 1000;  // a peer that began a message has this long to finish it
constexpr int kTickMs = 1000;

struct Connection {
  explicit Connection(Store& store) : session(store) {}
  os::Fd socket;
  StoreSession session;
  std::thread thread;
  std::atomic<bool> over{false};
};

Result<void> refuse(int socket, const Error& error) {
  v1::StoreReply refused;
  refused.mutable_error()->set_code(static_cast<v1::ErrorCode>(error.code));
  refused.mutable_error()->set_message(error.message);
  return os::send_message(socket, refused, Deadline::in_ms(kMessageMs));
}

// False: the connection is over. The store is held for the request's own work alone, never while a peer is waited for.
bool serve_one(Connection& connection, std::mutex& store_mutex) {
  int socket = connection.socket.get();
  auto received = os::receive_message<v1::StoreRequest>(socket, kMaxMessageBytes, Deadline::in_ms(kMessageMs), 1);
  if (!received) return false;
  auto answer = [&] {
    std::lock_guard lock(store_mutex);
    return connection.session.act(received->message, received->fds, monotonic_ms());
  }();
  if (!answer) return refuse(socket, answer.error()).has_value();
  int fd = answer->memory.get();
  return os::send_message(socket, answer->reply, Deadline::in_ms(kMessageMs),
                          fd >= 0 ? std::span<const int>(&fd, 1) : std::span<const int>())
      .has_value();
}

void serve_connection(Connection& connection, std::mutex& store_mutex, int64_t idle_ms) {
  pollfd wait{.fd = connection.socket.get(), .events = POLLIN, .revents = 0};
  while (poll(&wait, 1, static_cast<int>(idle_ms)) > 0 && serve_one(connection, store_mutex)) {
  }
  ::shutdown(connection.socket.get(), SHUT_RDWR);  // the peer hears it now; the descriptor goes with the object
  connection.over = true;
}

// The connections and their threads; belongs to the loop.
class Connections {
 public:
  Connections(Store& store, const StoreServerOptions& options) : store_(store), options_(options) {}
  ~Connections() {
    for (auto& connection : all_) ::shutdown(connection->socket.get(), SHUT_RDWR);
    for (auto& connection : all_) connection->thread.join();
  }
  bool room() const { return all_.size() < options_.max_connections; }
  void take(os::Fd socket) {
    auto connection = std::make_unique<Connection>(store_);
    connection->socket = std::move(socket);
    try {
      connection->thread = std::thread(serve_connection, std::ref(*connection), std::ref(mutex_), options_.idle_ms);
    } catch (const std::system_error&) {
      return;  // no thread to be had: the peer sees its connection closed, which costs it the cache
    }
    all_.push_back(std::move(connection));
  }
  void drop_ended() {
    std::erase_if(all_, [](const std::unique_ptr<Connection>& connection) {
      if (!connection->over) return false;
      connection->thread.join();
      return true;
    });
  }
  void expire() {
    std::lock_guard lock(mutex_);
    store_.expire(monotonic_ms());
  }

 private:
  Store& store_;
  const StoreServerOptions& options_;
  std::mutex mutex_;  // of the store
  std::vector<std::unique_ptr<Connection>> all_;
};

}  // namespace

Result<void> serve_store(Store& store, int listener, int stop_fd, const StoreServerOptions& options) {
  Connections connections(store, options);
  int64_t next_tick_ms = monotonic_ms() + kTickMs;
  for (;;) {
    pollfd polls[] = {{stop_fd, POLLIN, 0}, {connections.room() ? listener : -1, POLLIN, 0}};
    int n = poll(polls, std::size(polls), kTickMs);
    if (n < 0 && errno != EINTR) return fail_errno("waiting for requests", errno);
    if (n > 0 && polls[0].revents != 0) return {};
    connections.drop_ended();
    if (monotonic_ms() >= next_tick_ms) {
      connections.expire();
      next_tick_ms = monotonic_ms() + kTickMs;
    }
    if (n > 0 && polls[1].revents != 0)
      if (auto socket = os::accept_unix(listener, Deadline::in_ms(0))) connections.take(std::move(*socket));
  }
}

}  // namespace tie::cache
