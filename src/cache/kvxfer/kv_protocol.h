// What the two sides of a kvxfer buffer do to its shared words, and in which order: nothing else decides whether a
// commit can be missed, a wake-up lost or a block read before it is whole. Written against `Memory`, so that the tests
// run these very functions under a scheduler that tries every interleaving (kv_interleavings_test.cc); kv_buffer.cc
// gives it the mapped memory and the futex. Private to this folder. Threads: one producer, one consumer.
//
// Memory: uint32_t load(KvWord, order) · void store(KvWord, value, order) · bool exchange(KvWord, from, to) (acq_rel) ·
// void add_one(KvWord) (release) · void wake(KvWord) · bool sleep(KvWord, seen): returns when the word no longer is
// `seen`, when woken or after a slice of time; false: the deadline has passed · bool peer_died().
#pragma once
#include <atomic>
#include <cstdint>

namespace tie::cache {

enum KvBlockState : uint32_t { kKvFree = 0, kKvWriting = 1, kKvCommitted = 2 };
enum KvCloseState : uint32_t { kKvOpen = 0, kKvFinished = 1, kKvAborted = 2 };

// One of the buffer's shared words.
struct KvWord {
  enum Kind : uint32_t { kClosed, kTokenCount, kEvent, kBlockState } kind;
  uint32_t index = 0;  // of kBlockState
};

enum class KvOutcome { kReady, kNotYet, kFinishedWithout, kAborted, kPeerDied, kDeadline };

template <class Memory>
void kv_announce(Memory& memory) {
  memory.add_one({KvWord::kEvent});
  memory.wake({KvWord::kEvent});
}

// ---- the producer ----

template <class Memory>
bool kv_begin(Memory& memory, uint32_t block) {
  return memory.exchange({KvWord::kBlockState, block}, kKvFree, kKvWriting);
}

template <class Memory>
bool kv_commit(Memory& memory, uint32_t block) {
  if (!memory.exchange({KvWord::kBlockState, block}, kKvWriting, kKvCommitted)) return false;
  kv_announce(memory);
  return true;
}

// The first close wins: one producer, so there is no race with itself.
template <class Memory>
void kv_close(Memory& memory, KvCloseState how, uint32_t token_count) {
  if (memory.load({KvWord::kClosed}, std::memory_order_acquire) != kKvOpen) return;
  memory.store({KvWord::kTokenCount}, token_count, std::memory_order_relaxed);
  memory.store({KvWord::kClosed}, how, std::memory_order_release);
  kv_announce(memory);
}

// ---- the consumer ----

// `closed` is read before the block's state: a commit precedes the close, so whoever sees the close sees the commit.
template <class Memory>
KvOutcome kv_look_at_block(Memory& memory, uint32_t block) {
  uint32_t closed = memory.load({KvWord::kClosed}, std::memory_order_acquire);
  if (memory.load({KvWord::kBlockState, block}, std::memory_order_acquire) == kKvCommitted) return KvOutcome::kReady;
  if (closed == kKvOpen) return KvOutcome::kNotYet;
  return closed == kKvFinished ? KvOutcome::kFinishedWithout : KvOutcome::kAborted;
}

template <class Memory>
KvOutcome kv_look_at_end(Memory& memory) {
  uint32_t closed = memory.load({KvWord::kClosed}, std::memory_order_acquire);
  if (closed == kKvOpen) return KvOutcome::kNotYet;
  return closed == kKvFinished ? KvOutcome::kReady : KvOutcome::kAborted;
}

template <class Memory>
uint32_t kv_token_count(Memory& memory) {
  return memory.load({KvWord::kTokenCount}, std::memory_order_acquire);
}

// The event is read before the look: whatever changes after the look changes the event, and the sleep does not begin.
template <class Memory, class Look>
KvOutcome kv_wait(Memory& memory, Look&& look) {
  for (;;) {
    uint32_t seen = memory.load({KvWord::kEvent}, std::memory_order_acquire);
    KvOutcome outcome = look();
    if (outcome != KvOutcome::kNotYet) return outcome;
    if (memory.peer_died()) {
      outcome = look();  // its last words may have come just before
      return outcome == KvOutcome::kNotYet ? KvOutcome::kPeerDied : outcome;
    }
    if (!memory.sleep({KvWord::kEvent}, seen)) return KvOutcome::kDeadline;
  }
}

}  // namespace tie::cache
