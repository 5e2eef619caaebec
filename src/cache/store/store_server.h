// cache_stored's server: framed messages (proto/store.proto) on cache.sock, a thread for each connection, so that a
// peer that stops in the middle of a message, or does not read, delays nobody; the store is used by one of them at a
// time. The first message of a connection states its principal (from cloudboardd, which opens it) and is taken once;
// what follows comes from that request's tie-cloud-app. Hostile input: every message. Limits: connections, message
// size, idle time; a breach ends that connection and nothing else.
#pragma once
#include "cache/store/store.h"

namespace tie::cache {

struct StoreServerOptions {
  uint32_t max_connections = 512;
  int64_t idle_ms = 20 * 60 * 1000;  // a prewarmed or long request may hold its connection
};

// Serves until `stop_fd` becomes readable. Takes the listening socket's connections; the store outlives the call.
Result<void> serve_store(Store& store, int listener, int stop_fd, const StoreServerOptions& options = {});

}  // namespace tie::cache
