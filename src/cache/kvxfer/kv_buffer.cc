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
#include "cache/kvxfer/kv_protocol.h"

namespace tie::cache {
namespace {

constexpr std::array<char, 8> kMagic = {'T', 'I', 'E', 'K', 'V', 'X', 'F', '1'};
constexpr size_t kHeaderBytes = 4096;
constexpr size_t kAlign = 4096;
constexpr int64_t kWaitSliceMs = 10;  // how soon a waiter notices that its peer died

// The first page. Little-endian, as both ends are the same machine.
struct Header {
  std::array<char, 8> magic;
  KvDescription description;
  uint32_t closed;       // KvCloseState; atomic
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

// A socket hangs up when its other end dies; a pidfd becomes readable when its process exits.
bool peer_died(int peer) {
  if (peer < 0) return false;
  struct stat status{};
  bool is_socket = fstat(peer, &status) == 0 && S_ISSOCK(status.st_mode);
  pollfd p{.fd = peer, .events = static_cast<short>(is_socket ? POLLRDHUP : POLLIN), .revents = 0};
  return poll(&p, 1, 0) > 0 && p.revents != 0;
}

// The protocol's Memory over the mapped words. The consumer's mapping is read-only: it loads and sleeps, nothing else.
class SharedWords {
 public:
  explicit SharedWords(const std::byte* base, Deadline deadline = {}, int peer = -1)
      : base_(const_cast<std::byte*>(base)), deadline_(deadline), peer_(peer) {}

  uint32_t load(KvWord word, std::memory_order order) { return at(word).load(order); }
  void store(KvWord word, uint32_t value, std::memory_order order) { at(word).store(value, order); }
  bool exchange(KvWord word, uint32_t from, uint32_t to) {
    return at(word).compare_exchange_strong(from, to, std::memory_order_acq_rel);
  }
  void add_one(KvWord word) { at(word).fetch_add(1, std::memory_order_release); }
  void wake(KvWord word) { futex(word, FUTEX_WAKE, INT32_MAX, nullptr); }
  bool sleep(KvWord word, uint32_t seen) {
    int64_t left = deadline_.remaining_ms();
    if (left == 0) return false;
    int64_t slice = left < kWaitSliceMs ? left : kWaitSliceMs;
    timespec timeout{.tv_sec = slice / 1000, .tv_nsec = slice % 1000 * 1'000'000};
    futex(word, FUTEX_WAIT, seen, &timeout);
    return true;
  }
  bool peer_died() const { return tie::cache::peer_died(peer_); }

 private:
  uint32_t* place(KvWord word) const {
    constexpr size_t kOffsets[] = {offsetof(Header, closed), offsetof(Header, token_count), offsetof(Header, event),
                                   kHeaderBytes};
    return reinterpret_cast<uint32_t*>(base_ + kOffsets[word.kind]) + word.index;
  }
  std::atomic_ref<uint32_t> at(KvWord word) const { return std::atomic_ref<uint32_t>(*place(word)); }
  void futex(KvWord word, int operation, uint32_t value, const timespec* timeout) const {
    syscall(SYS_futex, place(word), operation, value, timeout, nullptr, 0);
  }
  std::byte* base_;
  Deadline deadline_;
  int peer_;
};

// What a wait that did not end as hoped is called.
Result<void> result_of(KvOutcome outcome) {
  switch (outcome) {
    case KvOutcome::kReady:
      return {};
    case KvOutcome::kFinishedWithout:
      return fail(Code::kNotFound, "the KV buffer was finished without this block");
    case KvOutcome::kPeerDied:
      return fail(Code::kRuntimeLost, "the process that writes the KV buffer died");
    case KvOutcome::kDeadline:
      return fail(Code::kDeadline, "the KV buffer was not filled in time");
    default:
      return fail(Code::kRuntimeLost, "the KV buffer was given up by its writer");
  }
}

}  // namespace

Result<KvProducer> KvProducer::create(const KvDescription& description) {
  TIE_CHECK_OK(check_limits(description));
  KvProducer out;
  out.description_ = description;
  TIE_TRY(out.fd_, os::create_memfd("kvxfer", total_bytes(description)));
  TIE_TRY(out.mapping_, os::Mapping::read_write(out.fd_.get()));
  Header header{.magic = kMagic, .description = description, .closed = kKvOpen, .token_count = 0, .event = 0};
  std::memcpy(out.mapping_.writable().data(), &header, sizeof header);
  TIE_CHECK_OK(os::add_seals(out.fd_.get(), os::kSealSize));
  return out;
}

KvProducer::~KvProducer() {
  if (mapping_.size() == 0) return;
  abort();
  // Blocks that were never begun have no memory yet, and writing zeros would give them some.
  std::byte* payload = mapping_.writable().data() + payload_offset(description_.block_count);
  for (uint32_t i = 0; i < begun_.size(); ++i)
    if (begun_[i]) secure_zero(payload + i * static_cast<size_t>(description_.block_bytes), description_.block_bytes);
}

Result<std::span<std::byte>> KvProducer::begin_block(uint32_t index) {
  if (index >= description_.block_count) return fail(Code::kOutOfRange, "KV block number beyond the buffer");
  std::byte* base = mapping_.writable().data();
  SharedWords words(base);
  if (!kv_begin(words, index)) return fail(Code::kAlreadyExists, "a KV block is written once");
  if (index >= begun_.size()) begun_.resize(index + 1);
  begun_[index] = true;
  return std::span(
      base + payload_offset(description_.block_count) + index * static_cast<size_t>(description_.block_bytes),
      description_.block_bytes);
}

Result<void> KvProducer::commit_block(uint32_t index) {
  if (index >= description_.block_count) return fail(Code::kOutOfRange, "KV block number beyond the buffer");
  SharedWords words(mapping_.writable().data());
  if (!kv_commit(words, index)) return fail(Code::kFailedPrecondition, "only a begun KV block is committed, once");
  return {};
}

Result<void> KvProducer::write_block(uint32_t index, std::span<const std::byte> payload) {
  if (payload.size() != description_.block_bytes) return fail(Code::kOutOfRange, "a KV block has the wrong size");
  TIE_TRY(std::span<std::byte> place, begin_block(index));
  std::memcpy(place.data(), payload.data(), payload.size());
  return commit_block(index);
}

void KvProducer::finish(uint32_t token_count) {
  SharedWords words(mapping_.writable().data());
  kv_close(words, kKvFinished, token_count);
}
void KvProducer::abort() {
  SharedWords words(mapping_.writable().data());
  kv_close(words, kKvAborted, 0);
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

Result<void> KvConsumer::wait_block(uint32_t index, Deadline deadline, int peer) {
  if (index >= description_.block_count) return fail(Code::kOutOfRange, "KV block number beyond the buffer");
  SharedWords words(mapping_.bytes().data(), deadline, peer);
  return result_of(kv_wait(words, [&] { return kv_look_at_block(words, index); }));
}

Result<uint32_t> KvConsumer::wait_finished(Deadline deadline, int peer) {
  SharedWords words(mapping_.bytes().data(), deadline, peer);
  TIE_CHECK_OK(result_of(kv_wait(words, [&] { return kv_look_at_end(words); })));
  uint32_t tokens = kv_token_count(words);
  if (tokens > static_cast<uint64_t>(description_.block_count) * description_.block_tokens)
    return fail(Code::kCorrupt, "a KV buffer claims more tokens than its blocks hold");
  return tokens;
}

Result<std::span<const std::byte>> KvConsumer::committed_block(uint32_t index) const {
  if (index >= description_.block_count) return fail(Code::kOutOfRange, "KV block number beyond the buffer");
  const std::byte* base = mapping_.bytes().data();
  if (SharedWords(base).load({KvWord::kBlockState, index}, std::memory_order_acquire) != kKvCommitted)
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
