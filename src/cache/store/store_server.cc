#include "cache/store/store_server.h"

#include <poll.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "os/framed_message.h"
#include "store.pb.h"

namespace tie::cache {
namespace {

constexpr size_t kMaxMessageBytes = kMaxManifestBytes + 4096;
constexpr int64_t kMessageMs = 1000;  // a peer that began a message has this long to finish it
constexpr int kTickMs = 1000;

struct Connection {
  os::Fd socket;
  std::optional<Principal> principal;
  uint64_t anonymous_bytes = 0;
  int64_t last_used_ms = 0;
};

Result<EntryId> entry_id(const std::string& bytes) {
  if (bytes.size() != kEntryIdBytes) return fail(Code::kBadRequest, "an entry id is 32 bytes long");
  EntryId id;
  std::memcpy(id.data(), bytes.data(), id.size());
  return id;
}

struct Answer {
  v1::StoreReply reply;
  os::Fd memory;  // goes with the reply
};

Result<void> bind(Connection& connection, const v1::BindPrincipal& request) {
  if (!request.principal().empty() && request.principal().size() != kPrincipalBytes)
    return fail(Code::kBadRequest, "a principal is 32 bytes long, or empty");
  connection.principal = request.principal();
  return {};
}

// An anonymous request may not fill the class it shares with all others.
Result<void> charge(Connection& connection, uint64_t bytes, const StoreLimits& limits) {
  if (!connection.principal->empty()) return {};
  if (bytes > limits.max_anonymous_bytes_per_connection - connection.anonymous_bytes)
    return fail(Code::kTooLarge, "this request has stored as much as an anonymous one may");
  connection.anonymous_bytes += bytes;
  return {};
}

// Small values travel in the reply; bulk as the sealed descriptor.
Result<Answer> get(Store& store, const v1::Get& request) {
  TIE_TRY(EntryId id, entry_id(request.entry_id()));
  TIE_TRY(StoredValue value, store.get(id, monotonic_ms()));
  Answer out;
  out.reply.set_bytes(value.size);
  if (value.fd < 0) {
    out.reply.set_value(value.bytes.data(), value.bytes.size());
    return out;
  }
  os::Fd borrowed(value.fd);
  auto copy = borrowed.duplicate();
  borrowed.release();
  TIE_TRY(out.memory, std::move(copy));
  return out;
}

Result<Answer> act(Store& store, Connection& connection, v1::StoreRequest& request, std::vector<os::Fd>& fds) {
  if (request.kind_case() == v1::StoreRequest::kBind) {
    if (connection.principal) return fail(Code::kFailedPrecondition, "the principal is stated once");
    TIE_CHECK_OK(bind(connection, request.bind()));
    return Answer{};
  }
  if (!connection.principal) return fail(Code::kFailedPrecondition, "the principal is stated first");
  switch (request.kind_case()) {
    case v1::StoreRequest::kPut: {
      TIE_TRY(EntryId id, entry_id(request.put().entry_id()));
      if (fds.size() != 1) return fail(Code::kBadRequest, "an entry comes with one descriptor");
      TIE_CHECK_OK(charge(connection, request.put().bytes(), store.limits()));
      TIE_CHECK_OK(store.put(*connection.principal, id, std::move(fds[0]), request.put().bytes(),
                             request.put().ttl_ms(), monotonic_ms()));
      return Answer{};
    }
    case v1::StoreRequest::kGet:
      return get(store, request.get());
    case v1::StoreRequest::kDelete: {
      TIE_TRY(EntryId id, entry_id(request.delete_().entry_id()));
      store.remove(id);
      return Answer{};
    }
    case v1::StoreRequest::kSwap: {
      const v1::CompareAndSwap& swap = request.swap();
      TIE_TRY(EntryId id, entry_id(swap.entry_id()));
      TIE_CHECK_OK(charge(connection, swap.value().size(), store.limits()));
      TIE_CHECK_OK(store.compare_and_swap(*connection.principal, id, as_bytes(swap.expected_sha256()),
                                          as_bytes(swap.value()), swap.ttl_ms(), monotonic_ms()));
      return Answer{};
    }
    case v1::StoreRequest::kStats: {
      StoreCounters counters = store.counters();
      Answer out;
      out.reply.set_entries(counters.entries);
      out.reply.set_used_bytes(counters.used_bytes);
      out.reply.set_capacity_bytes(store.limits().capacity_bytes);
      out.reply.set_evictions(counters.evictions);
      return out;
    }
    default:
      return fail(Code::kUnsupportedFeature, "this store does not know that request");
  }
}

// False: the connection is over.
bool serve_one(Store& store, Connection& connection) {
  int socket = connection.socket.get();
  auto received = os::receive_message<v1::StoreRequest>(socket, kMaxMessageBytes, Deadline::in_ms(kMessageMs), 1);
  if (!received) return false;
  connection.last_used_ms = monotonic_ms();
  auto answer = act(store, connection, received->message, received->fds);
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
      if (polls[i + 2].revents != 0 && !serve_one(store, *connections[i])) connections[i].reset();
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
      connections.push_back(
          std::make_unique<Connection>(Connection{.socket = std::move(*socket), .last_used_ms = now}));
    }
  }
}

}  // namespace tie::cache
