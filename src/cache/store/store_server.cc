#include "cache/store/store_server.h"

#include <poll.h>

#include <cerrno>
#include <memory>

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
  int64_t last_used_ms = 0;
};

// False: the connection is over.
bool serve_one(Connection& connection) {
  int socket = connection.socket.get();
  auto received = os::receive_message<v1::StoreRequest>(socket, kMaxMessageBytes, Deadline::in_ms(kMessageMs), 1);
  if (!received) return false;
  connection.last_used_ms = monotonic_ms();
  auto answer = connection.session.act(received->message, received->fds, connection.last_used_ms);
  if (!answer) {
    v1::StoreReply refused;
    refused.mutable_error()->set_code(static_cast<v1::ErrorCode>(answer.error().code));
    refused.mutable_error()->set_message(answer.error().message);
    return os::send_message(socket, refused, Deadline::in_ms(kMessageMs)).has_value();
  }
  int fd = answer->memory.get();
  return os::send_message(socket, answer->reply, Deadline::in_ms(kMessageMs),
                          fd >= 0 ? std::span<const int>(&fd, 1) : std::span<const int>())
      .has_value();
}

}  // namespace

Result<void> serve_store(Store& store, int listener, int stop_fd, const StoreServerOptions& options) {
  std::vector<std::unique_ptr<Connection>> connections;
  int64_t next_tick_ms = monotonic_ms() + kTickMs;
  for (;;) {
    std::vector<pollfd> polls = {{stop_fd, POLLIN, 0},
                                 {connections.size() < options.max_connections ? listener : -1, POLLIN, 0}};
    for (auto& connection : connections) polls.push_back({connection->socket.get(), POLLIN, 0});
    int n = poll(polls.data(), polls.size(), kTickMs);
    if (n < 0 && errno != EINTR) return fail_errno("waiting for requests", errno);
    if (n > 0 && polls[0].revents != 0) return {};
    for (size_t i = 0; n > 0 && i < connections.size(); ++i)
      if (polls[i + 2].revents != 0 && !serve_one(*connections[i])) connections[i].reset();
    int64_t now = monotonic_ms();
    if (now >= next_tick_ms) {
      store.expire(now);
      for (auto& connection : connections)
        if (connection && now - connection->last_used_ms > options.idle_ms) connection.reset();
      next_tick_ms = now + kTickMs;
    }
    std::erase(connections, nullptr);
    if (n > 0 && polls[1].revents != 0) {
      auto socket = os::accept_unix(listener, Deadline::in_ms(0));
      if (!socket) continue;  // gone again
      connections.push_back(std::make_unique<Connection>(store));
      connections.back()->socket = std::move(*socket);
      connections.back()->last_used_ms = now;
    }
  }
}

}  // namespace tie::cache
