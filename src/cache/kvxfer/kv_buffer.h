// kvxfer: the node-local buffer that carries KV blocks between afm-runtime and tie-cloud-app without copying them
// through a socket. The process that creates a buffer produces into it; its descriptor travels over a unix socket; the
// other process consumes, through a read-only mapping. Threads: one producer and one consumer, in different processes.
// Owns: the memfd; mappings die with the object. States of a block: free -> writing -> committed (release/acquire);
// committed is final. Waits are timed, and the peer's death ends them with an error. Secrets: carries plaintext KV; the
// producer zeroes the payload before it lets go. Bytes of the header: docs/kvxfer.md. Source: spec, "Moving the KV
// cache between processes".
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "os/memfd.h"

namespace tie::cache {

constexpr uint32_t kMaxKvBlocks = 1u << 16;
constexpr uint64_t kMaxKvBufferBytes = 8ull << 30;

// What the blocks are; checked by the consumer against its own configuration before a byte is used.
struct KvDescription {
  std::array<uint8_t, 32> model_id{};
  std::array<uint8_t, 32> release_id{};
  std::array<uint8_t, 32> layout_id{};
  uint32_t block_count = 0;
  uint32_t block_tokens = 0;
  uint64_t block_bytes = 0;
  bool operator==(const KvDescription&) const = default;
};

class KvProducer {
 public:
  // Allocates and seals the size. kOutOfRange beyond the limits above.
  static Result<KvProducer> create(const KvDescription& description);
  KvProducer(KvProducer&&) noexcept = default;
  KvProducer& operator=(KvProducer&&) noexcept = default;
  ~KvProducer();

  int fd() const { return fd_.get(); }  // pass it on; the consumer sees a fixed size
  const KvDescription& description() const { return description_; }

  // Blocks are written in any order, each once. kOutOfRange; kAlreadyExists when begun before.
  Result<std::span<std::byte>> begin_block(uint32_t index);
  // kFailedPrecondition unless begun. Wakes the consumer.
  Result<void> commit_block(uint32_t index);
  // begin, one copy, commit. payload is exactly block_bytes long.
  Result<void> write_block(uint32_t index, std::span<const std::byte> payload);

  // No more blocks will come; `token_count` tokens are covered by committed blocks. abort: what was promised will not
  // come. Both are final; the first wins.
  void finish(uint32_t token_count);
  void abort();

 private:
  KvProducer() = default;
  os::Fd fd_;
  os::Mapping mapping_;
  KvDescription description_;
  std::vector<bool> begun_;  // our own record: the states in the buffer can be written by the other side
};

class KvConsumer {
 public:
  // Requires the size seals and the exact size, maps read-only, copies the header once and checks it. kPermissionDenied
  // (seals), kCorrupt (header), kOutOfRange (limits).
  static Result<KvConsumer> attach(os::Fd fd);

  const KvDescription& description() const { return description_; }

  // Until block `index` is committed. `peer` is a descriptor that hangs up when the producer dies (its socket or
  // pidfd); -1 for none. Errors: kDeadline; kRuntimeLost when the peer died or aborted; kNotFound when it finished
  // without this block.
  Result<void> wait_block(uint32_t index, Deadline deadline, int peer = -1);
  // Until the producer finished; gives the token count (at most block_count * block_tokens).
  Result<uint32_t> wait_finished(Deadline deadline, int peer = -1);
  // One copy of a committed block; kFailedPrecondition if it is not.
  Result<void> read_block(uint32_t index, std::span<std::byte> out) const;
  // The shared bytes themselves: read each byte once only (sealing may), since the producer could still change them.
  Result<std::span<const std::byte>> committed_block(uint32_t index) const;

 private:
  KvConsumer() = default;
  os::Fd fd_;
  os::Mapping mapping_;
  KvDescription description_;
};

}  // namespace tie::cache
