// The other end of cache.sock: what tie-cloud-app says over the connection that cloudboardd opened, and whose principal
// it stated, for this request. One thread. Every call waits until its deadline at most; after one that failed on the
// connection itself nothing more is sent, because answers could no longer be told apart. Untrusted: the store is the
// app's neighbour; what it returns is ciphertext that has to prove itself.
#pragma once
#include <optional>

#include "cache/store/store.h"
#include "os/memfd.h"

namespace tie::v1 {
class StoreReply;
class StoreRequest;
}  // namespace tie::v1

namespace tie::cache {

// An entry as it came: small ones as bytes, others as sealed memory, mapped.
class FetchedEntry {
 public:
  ByteView bytes() const;

 private:
  friend class StoreClient;
  Bytes small_;
  os::Mapping mapping_;
};

class StoreClient {
 public:
  // `socket`: invalid when the node has no store; then every call is kNotReady.
  explicit StoreClient(os::Fd socket) : socket_(std::move(socket)) {}

  bool usable() const { return socket_.valid(); }
  // kNotFound: no such entry. kPermissionDenied, kCorrupt: the memory is not sealed, or not of the stated size.
  Result<FetchedEntry> get(const EntryId& id, Deadline deadline);
  // `memory` has all four seals. kAlreadyExists, kTooLarge.
  Result<void> put(const EntryId& id, const os::Fd& memory, uint64_t bytes, uint32_t ttl_ms, Deadline deadline);
  // kAlreadyExists: the entry is not the one of that digest (empty: that there is none).
  Result<void> swap(const EntryId& id, ByteView expected_sha256, ByteView value, uint32_t ttl_ms, Deadline deadline);
  Result<void> remove(const EntryId& id, Deadline deadline);

 private:
  struct Answer;
  Result<Answer> ask(const v1::StoreRequest& request, Deadline deadline, const os::Fd* memory = nullptr);
  Result<Answer> receive(Deadline deadline);

  os::Fd socket_;
  bool bound_ = false;  // the answer to cloudboardd's statement has been read
};

}  // namespace tie::cache
