// One connection's view of the store: the principal that it stated, what it may do, what it has used up. No sockets and
// no threads, so that tests and the fuzzer drive it with messages alone. Hostile input: every message. Used by
// store_server.cc.
#pragma once
#include <optional>
#include <vector>

#include "cache/store/store.h"
#include "store.pb.h"

namespace tie::cache {

struct StoreAnswer {
  v1::StoreReply reply;
  os::Fd memory;  // goes with the reply
};

class StoreSession {
 public:
  explicit StoreSession(Store& store) : store_(store) {}
  // Performs one request; takes the descriptors that it needs. The error becomes the reply: the connection goes on.
  Result<StoreAnswer> act(const v1::StoreRequest& request, std::vector<os::Fd>& fds, int64_t now_ms);

 private:
  Result<void> bind(const v1::BindPrincipal& request);
  Result<void> charge(uint64_t bytes);
  Result<StoreAnswer> get(const v1::Get& request, int64_t now_ms);
  StoreAnswer stats() const;

  Store& store_;
  std::optional<Principal> principal_;
  uint64_t anonymous_bytes_ = 0;
};

}  // namespace tie::cache
