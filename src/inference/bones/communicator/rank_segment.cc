#include "inference/bones/communicator/rank_segment.h"

#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <climits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/clock.h"
#include "inference/bones/ops/workspace.h"

namespace tie::bones {
namespace {

constexpr uint64_t kMagic = 0x31534b4e41524554;  // "TERANKS1"
constexpr uint64_t kFailed = uint64_t{1} << 63;
constexpr int64_t kSleepSliceNs = 50'000'000;
constexpr uint32_t kMostSlices = 1200;  // a peer that lives but has not come for a minute counts as lost
// How long to spin before sleeping, as in ThreadPool: a sleep halves the patience, a meeting without one restores some,
// more than there: the long waits of a prompt put ranks to sleep, and the first steps after it should not inherit that.
// The most is about a millisecond: where heads do not divide evenly a rank waits half of that in every layer of a
// prompt, and whoever waits for one that has to wake loses 3 % of the prompt.
constexpr int64_t kFollowerSpinUs = 200;  // a decode step follows within microseconds
constexpr uint32_t kLeastSpins = 500, kMostSpins = 60000, kSpinsRegained = 10000;
thread_local uint32_t patience = kMostSpins;

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// The kernel compares 32 bits: the lower half of a wider word.
static_assert(std::endian::native == std::endian::little);

template <typename Word>
void futex_wait(std::atomic<Word>& word, Word value) {
  const timespec slice{0, kSleepSliceNs};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, static_cast<uint32_t>(value), &slice, nullptr, 0);
}

template <typename Word>
void futex_wake_all(std::atomic<Word>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Spins until done() holds or patience runs out.
template <typename Done>
bool spin(Done done) {
  for (uint32_t i = 0; i < patience; ++i) {
    if (done()) {
      patience = std::min(patience + kSpinsRegained, kMostSpins);
      return true;
    }
    relax();
  }
  patience = std::max(patience / 2, kLeastSpins);
  return false;
}

}  // namespace

bool PeerWatch::lost() const {
  for (const os::Fd& peer : peers_) {
    pollfd p{peer.get(), POLLIN, 0};
    if (::poll(&p, 1, 0) > 0 && p.revents != 0) return true;
  }
  return false;
}

namespace {

// Of one stage's shared rows.
size_t shared_bytes(const RankLimits& limits) {
  Arena count;
  take_activations(count, limits.max_batch_rows, limits.n_embd);
  return count.used();
}

}  // namespace

Activations RankSegment::shared_rows(uint32_t stage) {
  Arena arena(at<std::byte>(shared_) + stage * shared_bytes(limits_));
  return take_activations(arena, limits_.max_batch_rows, limits_.n_embd);
}

size_t RankSegment::lay_out(const RankLimits& limits) {
  limits_ = limits;
  size_t used = sizeof(SegmentHeader);
  auto take = [&used](size_t bytes) {
    used = (used + 63) / 64 * 64;
    const size_t offset = used;
    used += bytes;
    return offset;
  };
  const size_t rows = limits.max_batch_rows, row_bytes = row_floats() * sizeof(float);
  tokens_ = take(rows * sizeof(int32_t));
  spans_ = take(limits.max_sequences * sizeof(StoredSpan));
  table_ = take(size_t{limits.max_table_entries} * sizeof(uint32_t));
  logit_rows_ = take(limits.max_logit_rows * sizeof(uint32_t));
  embedding_rows_ = take(rows * sizeof(uint32_t));
  embeddings_ = take(row_bytes);
  addends_ = take(size_t{limits.grid.count()} * 2 * row_bytes);
  totals_ = take(size_t{limits.grid.stages} * 2 * row_bytes);
  shared_ = take(limits.grid.stages * shared_bytes(limits));
  handed_ = take(limits.grid.stages * row_bytes);
  logits_ = take(limits.max_logit_rows * logits_stride() * sizeof(float));
  wanted_ = take(limits.max_logit_rows * sizeof(StoredBest));
  masks_ = take(size_t{limits.max_logit_rows} * mask_words() * sizeof(uint32_t));
  const size_t lists = size_t{best_lists()} * limits.max_logit_rows;
  best_ = take(lists * kMostBest * sizeof(Candidate));
  best_counts_ = take(lists * sizeof(uint32_t));
  return (used + 4095) / 4096 * 4096;
}

namespace {

bool sane(const RankLimits& l) {
  auto within = [](uint32_t value, uint32_t most) { return value >= 1 && value <= most; };
  return within(l.grid.tensor_ranks, kMaxRanks) && within(l.grid.stages, kMaxRanks) && l.grid.count() <= kMaxRanks &&
         within(l.threads_per_rank, 256) && within(l.n_embd, kMaxWidth) && within(l.n_vocab, kMaxVocab) &&
         within(l.max_batch_rows, 8192) && within(l.max_logit_rows, 8192) && within(l.max_sequences, 8192) &&
         within(l.max_table_entries, 1u << 26);
}

}  // namespace

Result<RankSegment> RankSegment::create(const RankLimits& limits) {
  if (!sane(limits)) return tie::fail(Code::kBadRequest, "the limits of the ranks are out of range");
  RankSegment out;
  const size_t bytes = out.lay_out(limits);
  TIE_TRY(out.fd_, os::create_memfd("tie-ranks", bytes));
  TIE_CHECK_OK(os::add_seals(out.fd_.get(), os::kSealSize));
  TIE_TRY(out.mapping_, os::Mapping::read_write(out.fd_.get()));
  out.header().limits = limits;
  out.header().magic = kMagic;
  return out;
}

Result<RankSegment> RankSegment::open(os::Fd memory) {
  TIE_CHECK_OK(os::require_seals(memory.get(), os::kSealSize));
  RankSegment out;
  TIE_TRY(out.mapping_, os::Mapping::read_write(memory.get()));
  out.fd_ = std::move(memory);
  if (out.mapping_.size() < sizeof(SegmentHeader) || out.header().magic != kMagic)
    return tie::fail(Code::kCorrupt, "the memory is not a segment of ranks");
  const RankLimits limits = out.header().limits;
  if (!sane(limits) || out.lay_out(limits) != out.mapping_.size())
    return tie::fail(Code::kCorrupt, "the segment of the ranks has the wrong size");
  return out;
}

template <typename Word>
void RankSegment::sleep(std::atomic<Word>& word, Word value, std::atomic<uint32_t>& sleepers) {
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (word.load(std::memory_order_seq_cst) == value) futex_wait(word, value);
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
  if (word.load(std::memory_order_seq_cst) == value && peers_.lost()) fail();
}

bool RankSegment::meet(BarrierState& barrier, uint32_t parties) {
  // Nobody arrives after a failure, so whether a meeting took place is the same for all who look at the counter.
  uint64_t now = barrier.arrived.load(std::memory_order_relaxed);
  do {
    if (now & kFailed) return false;
  } while (!barrier.arrived.compare_exchange_weak(now, now + 1, std::memory_order_seq_cst, std::memory_order_relaxed));
  const uint64_t complete = (now / parties + 1) * parties;
  if (++now == complete) {
    if (barrier.sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(barrier.arrived);
    return true;
  }
  auto over = [&] {
    now = barrier.arrived.load(std::memory_order_acquire);
    return (now & ~kFailed) >= complete || (now & kFailed) != 0;
  };
  if (!spin(over))
    for (uint32_t slices = 0; !over(); ++slices) {
      sleep(barrier.arrived, now, barrier.sleepers);
      if (slices == kMostSlices) fail();
    }
  return (now & ~kFailed) >= complete;
}

bool RankSegment::wait_at_least(std::atomic<uint32_t>& word, std::atomic<uint32_t>& sleepers, uint32_t at_least) {
  std::atomic<uint32_t>& failed = header().failed;
  auto done = [&] { return word.load(std::memory_order_acquire) >= at_least || failed.load() != 0; };
  if (!spin(done)) {
    for (uint32_t slices = 0; !done(); ++slices) {
      const uint32_t value = word.load(std::memory_order_seq_cst);
      if (value < at_least) sleep(word, value, sleepers);
      if (slices == kMostSlices) fail();
    }
  }
  return word.load(std::memory_order_acquire) >= at_least;
}

void RankSegment::advance(std::atomic<uint32_t>& word, std::atomic<uint32_t>& sleepers) {
  word.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) != 0) futex_wake_all(word);
}

void RankSegment::begin_step() {
  advance(header().epoch, header().followers_asleep);
}

Result<void> RankSegment::end_step() {
  if (meet(header().world, limits_.grid.count())) return {};
  return tie::fail(Code::kRuntimeLost, "a rank of the model is lost");
}

void RankSegment::stop() {
  header().stop.store(1);
  begin_step();
}

Result<void> RankSegment::follow(const std::function<Result<void>()>& run) {
  for (uint32_t epoch = 0; wait_for_step(epoch); ++epoch) {
    auto ran = run();
    if (ran) ran = end_step();
    if (ran) continue;
    fail();  // whoever cannot take part must not be waited for
    return ran;
  }
  if (header().stop.load() != 0) return {};
  return tie::fail(Code::kRuntimeLost, "a rank of the model is lost");
}

bool RankSegment::wait_for_step(uint32_t seen) {
  SegmentHeader& h = header();
  auto done = [&] {
    return h.epoch.load(std::memory_order_acquire) != seen || h.stop.load() != 0 || h.failed.load() != 0;
  };
  const int64_t until = monotonic_us() + kFollowerSpinUs;
  for (uint32_t i = 1; !done(); ++i) {
    relax();
    if (i % 64 == 0 && monotonic_us() >= until) break;
  }
  while (!done()) sleep(h.epoch, seen, h.followers_asleep);
  return h.stop.load() == 0 && h.failed.load() == 0;
}

void RankSegment::fail() {
  SegmentHeader& h = header();
  h.failed.store(1, std::memory_order_seq_cst);
  auto fail_one = [](BarrierState& barrier) {
    barrier.arrived.fetch_or(kFailed, std::memory_order_seq_cst);
    futex_wake_all(barrier.arrived);
  };
  fail_one(h.world);
  for (uint32_t stage = 0; stage < limits_.grid.stages; ++stage) {
    fail_one(h.tensor[stage]);
    futex_wake_all(h.progress[stage].parts);
  }
  futex_wake_all(h.epoch);
}

bool RankSegment::failed() {
  if (header().failed.load() == 0 && peers_.lost()) fail();
  return header().failed.load() != 0;
}

}  // namespace tie::bones
