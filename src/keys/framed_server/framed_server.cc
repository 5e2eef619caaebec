#include "keys/framed_server/framed_server.h"

#include <sys/socket.h>

#include <system_error>

namespace tie::keys {
namespace {
constexpr int64_t kAcceptPollMs = 200;
constexpr int64_t kIdlePollMs = 60'000;
constexpr int64_t kAcceptPauseMs = 50;  // after running out of descriptors, say
}  // namespace

Result<std::unique_ptr<FramedServer>> FramedServer::start(const std::string& path, Options options, Serve serve) {
  TIE_TRY(os::Fd listener, os::listen_unix(path));
  return std::unique_ptr<FramedServer>(new FramedServer(std::move(listener), options, std::move(serve)));
}

FramedServer::FramedServer(os::Fd listener, Options options, Serve serve)
    : listener_(std::move(listener)),
      options_(options),
      serve_(std::move(serve)),
      acceptor_([this] { accept_loop(); }) {}

FramedServer::~FramedServer() {
  stop();
}

void FramedServer::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Connection& connection : connections_) ::shutdown(connection.socket.get(), SHUT_RDWR);
  }
  if (acceptor_.joinable()) acceptor_.join();
  std::unique_lock lock(mutex_);
  empty_.wait(lock, [this] { return connections_.empty(); });
}

void FramedServer::accept_loop() {
  for (;;) {
    auto socket = os::accept_unix(listener_.get(), Deadline::in_ms(kAcceptPollMs));
    std::unique_lock lock(mutex_);
    if (stopping_) return;
    if (!socket) {
      const bool pause = socket.error().code != Code::kDeadline;
      lock.unlock();
      if (pause) std::this_thread::sleep_for(std::chrono::milliseconds(kAcceptPauseMs));
      continue;
    }
    if (connections_.size() >= options_.max_connections || !welcome(socket->get())) continue;
    connections_.push_front({std::move(*socket)});
    try {
      std::thread([this, connection = connections_.begin()] { serve_connection(connection); }).detach();
    } catch (const std::system_error&) {  // no thread to be had: the peer sees a closed connection and tries again
      connections_.pop_front();
    }
  }
}

bool FramedServer::welcome(int socket) const {
  if (!options_.peer_uid) return true;
  const auto peer = os::peer_credentials(socket);
  return peer && peer->uid == *options_.peer_uid;
}

void FramedServer::serve_connection(std::list<Connection>::iterator connection) {
  const int socket = connection->socket.get();
  for (;;) {
    auto readable = os::wait_readable(socket, Deadline::in_ms(kIdlePollMs));
    if (!readable && readable.error().code == Code::kDeadline) continue;  // an idle helper of the pool
    if (!readable || !serve_(socket)) break;
  }
  std::lock_guard lock(mutex_);
  connections_.erase(connection);
  // Under the lock: once it is free and the list empty, this object may be gone.
  empty_.notify_all();
}

}  // namespace tie::keys
