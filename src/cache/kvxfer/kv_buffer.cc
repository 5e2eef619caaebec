#include "cache/kvxfer/kv_buffer.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "base/secret_bytes.h"

namespace tie::cache {
namespace {

constexpr std::array<char, 8> kMagic = {'T', 'I', 'E', 'K', 'V', 'X', 'F', '1'};
constexpr size_t kHeaderBytes = 4096;
constexpr size_t kAlign = 4096;
constexpr int64_t kWaitSliceMs = 10;  // how soon a waiter notices that its peer died

enum BlockState : uint32_t { kFree = 0, kWriting = 1, kCommitted = 2 };
enum CloseState : uint32_t { kOpen = 0, kFinished = 1, kAborted = 2 };

// The first page. Little-endian, as both ends are the same machine.
struct Header {
  std::array<char, 8> magic;
  KvDescription description;
  uint32_t closed;       // CloseState; atomic
  uint32_t token_count;  // valid once closed is kFinished
  uint32_t event;        // futex word: changes with every commit and close
};
static_assert(sizeof(Header) <= kHeaderBytes && std::is_trivially_copyable_v<Header>);

size_t payload_offset(uint32_t block_count) {
  return kHeaderBytes + (block_count * sizeof(uint32_t) + kAlign - 1) / kAlign * kAlign;
}
size_t total_bytes(const KvDescription& d) {
  return payload_offset(d.block_count) + d.block_count * static_cast<size_t>(d.block_bytes);
}

Result<void> check_limits(const KvDescription& d) {
  if (d.block_count == 0 || d.block_count > kMaxKvBlocks)
    return fail(Code::kOutOfRange, "a KV buffer has 1 to 65536 blocks");
  if (d.block_tokens == 0 || d.block_tokens > 4096)
    return fail(Code::kOutOfRange, "a KV block covers 1 to 4096 tokens");
  if (d.block_bytes == 0 || d.block_bytes > kMaxKvBufferBytes / d.block_count)
    return fail(Code::kOutOfRange, "a KV buffer has at most 8 GiB");
  return {};
}

std::atomic_ref<uint32_t> word(std::byte* at) {
  return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(at));
}
// atomic_ref wants a mutable object; the consumer only ever loads.
uint32_t load(const std::byte* at) {
  return word(const_cast<std::byte*>(at)).load(std::memory_order_acquire);
}
const std::byte* block_state_at(const std::byte* base, uint32_t index) {
  return base + kHeaderBytes + index * sizeof(uint32_t);
}

long futex(const std::byte* at, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, at, operation, value, timeout, nullptr, 0);
}

void announce(std::byte* base) {
  std::byte* event = base + offsetof(Header, event);
  word(event).fetch_add(1, std::memory_order_release);
  futex(event, FUTEX_WAKE, INT32_MAX, nullptr);
}

// A socket hangs up when its other end dies; a pidfd becomes readable when its process exits.
bool peer_died(int peer) {
  if (peer < 0) return false;
  struct stat status{};
  bool is_socket = fstat(peer, &status) == 0 && S_ISSOCK(status.st_mode);
  pollfd p{.fd = peer, .events = static_cast<short>(is_socket ? POLLRDHUP : POLLIN), .revents = 0};
  return poll(&p, 1, 0) > 0 && p.revents != 0;
}

}  // namespace

Result<KvProducer> KvProducer::create(const KvDescription& description) {
  TIE_CHECK_OK(check_limits(description));
  KvProducer out;
  out.description_ = description;
  TIE_TRY(out.fd_, os::create_memfd("kvxfer", total_bytes(description)));
  TIE_TRY(out.mapping_, os::Mapping::read_write(out.fd_.get()));
  Header header{.magic = kMagic, .description = description, .closed = kOpen, .token_count = 0, .event = 0};
  std::memcpy(out.mapping_.writable().data(), &header, sizeof header);
  TIE_CHECK_OK(os::add_seals(out.fd_.get(), os::kSealSize));
  return out;
}

KvProducer::~KvProducer() {
  if (mapping_.size() == 0) return;
  abort();
  size_t payload = payload_offset(description_.block_count);
  secure_zero(mapping_.writable().data() + payload, mapping_.size() - payload);
}

Result<std::span<std::byte>> KvProducer::begin_block(uint32_t index) {
  if (index >= description_.block_count) return fail(Code::kOutOfRange, "KV block number beyond the buffer");
  std::byte* base = mapping_.writable().data();
  uint32_t expected = kFree;
  if (!word(const_cast<std::byte*>(block_state_at(base, index)))
           .compare_exchange_strong(expected, kWriting, std::memory_order_acq_rel))
    return fail(Code::kAlreadyExists, "a KV block is written once");
  return std::span(
      base + payload_offset(description_.block_count) + index * static_cast<size_t>(description_.block_bytes),
      description_.block_bytes);
}

Result<void> KvProducer::commit_block(uint32_t index) {
  if (index >= description_.block_count) return fail(Code::kOutOfRange, "KV block number beyond the buffer");
  std::byte* base = mapping_.writable().data();
  uint32_t expected = kWriting;
  if (!word(const_cast<std::byte*>(block_state_at(base, index)))
           .compare_exchange_strong(expected, kCommitted, std::memory_order_acq_rel))
    return fail(Code::kFailedPrecondition, "only a begun KV block is committed, once");
  announce(base);
  return {};
}

Result<void> KvProducer::write_block(uint32_t index, std::span<const std::byte> payload) {
  if (payload.size() != description_.block_bytes) return fail(Code::kOutOfRange, "a KV block has the wrong size");
  TIE_TRY(std::span<std::byte> place, begin_block(index));
  std::memcpy(place.data(), payload.data(), payload.size());
  return commit_block(index);
}

void KvProducer::close(uint32_t how, uint32_t token_count) {
  std::byte* base = mapping_.writable().data();
  std::byte* closed = base + offsetof(Header, closed);
  if (word(closed).load(std::memory_order_acquire) != kOpen) return;  // one producer: no race with itself
  word(base + offsetof(Header, token_count)).store(token_count, std::memory_order_relaxed);
  word(closed).store(how, std::memory_order_release);
  announce(base);
}

void KvProducer::finish(uint32_t token_count) {
  close(kFinished, token_count);
}
void KvProducer::abort() {
  close(kAborted, 0);
}

Result<KvConsumer> KvConsumer::attach(os::Fd fd) {
  TIE_CHECK_OK(os::require_seals(fd.get(), os::kSealSize));
  TIE_TRY(size_t size, os::file_size(fd.get()));
  if (size < kHeaderBytes || size > kMaxKvBufferBytes + (1u << 20))
    return fail(Code::kCorrupt, "a KV buffer has an impossible size");
  KvConsumer out;
  TIE_TRY(out.mapping_, os::Mapping::read_only(fd.get()));
  Header header;
  std::memcpy(&header, out.mapping_.bytes().data(), sizeof header);
  if (header.magic != kMagic) return fail(Code::kCorrupt, "not a KV buffer of this version");
  TIE_CHECK_OK(check_limits(header.description));
  if (total_bytes(header.description) != size)
    return fail(Code::kCorrupt, "a KV buffer's size is not what its header says");
  out.description_ = header.description;
  out.fd_ = std::move(fd);
  return out;
}

// check() -> true: done; false: not yet; an error ends the wait.
template <typename Check>
Result<void> KvConsumer::wait(Check&& check, Deadline deadline, int peer) const {
  const std::byte* base = mapping_.bytes().data();
  const std::byte* event = base + offsetof(Header, event);
  for (;;) {
    uint32_t seen = load(event);
    TIE_TRY(bool done, check());
    if (done) return {};
    if (peer_died(peer)) {
      TIE_TRY(bool done_before_death, check());  // its last words may have come just before
      if (done_before_death) return {};
      return fail(Code::kRuntimeLost, "the process that writes the KV buffer died");
    }
    int64_t left = deadline.remaining_ms();
    if (left == 0) return fail(Code::kDeadline, "the KV buffer was not filled in time");
    int64_t slice = left < kWaitSliceMs ? left : kWaitSliceMs;
    timespec timeout{.tv_sec = slice / 1000, .tv_nsec = slice % 1000 * 1'000'000};
    futex(event, FUTEX_WAIT, seen, &timeout);
  }
}

Result<void> KvConsumer::wait_block(uint32_t index, Deadline deadline, int peer) {
  if (index >= description_.block_count) return fail(Code::kOutOfRange, "KV block number beyond the buffer");
  const std::byte* base = mapping_.bytes().data();
  auto check = [&]() -> Result<bool> {
    uint32_t closed = load(base + offsetof(Header, closed));  // before the state: a commit precedes the close
    if (load(block_state_at(base, index)) == kCommitted) return true;
    if (closed == kOpen) return false;
    if (closed == kFinished) return fail(Code::kNotFound, "the KV buffer was finished without this block");
    return fail(Code::kRuntimeLost, "the KV buffer was given up by its writer");
  };
  return wait(check, deadline, peer);
}

Result<uint32_t> KvConsumer::wait_finished(Deadline deadline, int peer) {
  const std::byte* base = mapping_.bytes().data();
  auto check = [&]() -> Result<bool> {
    uint32_t closed = load(base + offsetof(Header, closed));
    if (closed == kOpen) return false;
    if (closed == kFinished) return true;
    return fail(Code::kRuntimeLost, "the KV buffer was given up by its writer");
  };
  TIE_CHECK_OK(wait(check, deadline, peer));
  uint32_t tokens = load(base + offsetof(Header, token_count));
  if (tokens > static_cast<uint64_t>(description_.block_count) * description_.block_tokens)
    return fail(Code::kCorrupt, "a KV buffer claims more tokens than its blocks hold");
  return tokens;
}

Result<std::span<const std::byte>> KvConsumer::committed_block(uint32_t index) const {
  if (index >= description_.block_count) return fail(Code::kOutOfRange, "KV block number beyond the buffer");
  const std::byte* base = mapping_.bytes().data();
  if (load(block_state_at(base, index)) != kCommitted)
    return fail(Code::kFailedPrecondition, "the KV block is not committed");
  return std::span(
      base + payload_offset(description_.block_count) + index * static_cast<size_t>(description_.block_bytes),
      description_.block_bytes);
}

Result<void> KvConsumer::read_block(uint32_t index, std::span<std::byte> out) const {
  TIE_TRY(std::span<const std::byte> block, committed_block(index));
  if (out.size() != block.size()) return fail(Code::kOutOfRange, "the place for a KV block has the wrong size");
  std::memcpy(out.data(), block.data(), block.size());
  return {};
}

}  // namespace tie::cache
