// A model checker for the protocol of a KV buffer (kv_protocol.h): the product's own functions run as fibers, every
// access to a shared word is a point where the scheduler may switch, and a depth-first search tries every interleaving
// (up to the order of accesses that commute: sleep sets). Accesses carry vector clocks, so that reading a payload that
// release and acquire do not order after its writing is found even in an interleaving where the bytes happen to be
// right. Sleeping has no timeout here unless the peer died: a lost wake-up shows as a deadlock. Each property is proved
// able to fail by a broken variant.
#include <gtest/gtest.h>
#include <ucontext.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "cache/kvxfer/kv_protocol.h"

namespace tie::cache {
namespace {

constexpr int kThreads = 2;
using Clock = std::array<uint32_t, kThreads>;

// What a fiber wants to do next: accesses of different places commute, and so do two reads of one.
struct Access {
  uint64_t place = 0;
  bool writes = false;
  bool commutes_with(const Access& other) const { return place != other.place || (!writes && !other.writes); }
};

constexpr uint64_t kPayloadPlace = 1u << 20;
constexpr uint64_t kLifePlace = 1u << 21;
uint64_t place_of(KvWord word) {
  return static_cast<uint64_t>(word.kind) << 8 | word.index;
}

struct Breakage {
  bool relaxed_commit = false;  // exchange() publishes nothing
  bool no_wake = false;         // announcements are silent
  bool blind_sleep = false;     // sleep() does not compare with what was seen
  bool ignores_death = false;   // peer_died() always says no
};

class Run;

// The Memory of one fiber.
class ModelMemory {
 public:
  ModelMemory(Run& run, int self) : run_(run), self_(self) {}
  uint32_t load(KvWord word, std::memory_order order);
  void store(KvWord word, uint32_t value, std::memory_order order);
  bool exchange(KvWord word, uint32_t from, uint32_t to);
  void add_one(KvWord word);
  void wake(KvWord word);
  bool sleep(KvWord word, uint32_t seen);
  bool peer_died();
  // A block's payload: written in two halves, so that a torn read can be seen.
  void write_payload(uint32_t block, uint32_t value);
  uint32_t read_payload(uint32_t block);

 private:
  Run& run_;
  int self_;
};

constexpr size_t kStackBytes = 64 << 10;

struct Fiber {
  ucontext_t context{};
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  std::function<void(ModelMemory&)> body;
  Access next;
  bool finished = false, asleep = false, killed = false;
  Clock clock{};
};

// One execution along a given prefix of choices.
class Run {
 public:
  Run(std::array<std::function<void(ModelMemory&)>, kThreads> bodies, const Breakage& breakage, int kill_after)
      : breakage_(breakage), kill_after_(kill_after) {
    for (int i = 0; i < kThreads; ++i) {
      fibers_[i].body = std::move(bodies[i]);
      fibers_[i].next = {kLifePlace + 1 + static_cast<uint64_t>(i), false};  // the start commutes with everything
      getcontext(&fibers_[i].context);
      fibers_[i].context.uc_stack.ss_sp = fibers_[i].stack.get();
      fibers_[i].context.uc_stack.ss_size = kStackBytes;
      fibers_[i].context.uc_link = &scheduler_;
      makecontext(&fibers_[i].context, reinterpret_cast<void (*)()>(&Run::trampoline), 2, hi(this), lo(this) | i);
    }
  }

  bool can_run(int i) const {
    const Fiber& fiber = fibers_[i];
    return !fiber.finished && !fiber.killed && (!fiber.asleep || (i == 1 && fibers_[0].killed));
  }
  // Dying is an access as well: the other side can see it.
  Access next(int i) const {
    bool dies = i == 0 && producer_steps_ == kill_after_;
    return dies ? Access{kLifePlace, true} : fibers_[i].next;
  }
  bool finished() const {
    return std::all_of(fibers_.begin(), fibers_.end(), [](const Fiber& f) { return f.finished || f.killed; });
  }
  // Performs the access that fiber i waits to do and runs it up to its next one.
  void step(int i) {
    fibers_[i].asleep = false;
    if (i == 0 && producer_steps_++ == kill_after_) {
      fibers_[0].killed = true;
      return;
    }
    swapcontext(&scheduler_, &fibers_[i].context);
  }
  std::string failure;

 private:
  friend class ModelMemory;
  static unsigned hi(Run* run) { return static_cast<unsigned>(reinterpret_cast<uintptr_t>(run) >> 32); }
  static unsigned lo(Run* run) { return static_cast<unsigned>(reinterpret_cast<uintptr_t>(run)); }
  static void trampoline(unsigned high, unsigned low) {
    auto* run = reinterpret_cast<Run*>(static_cast<uintptr_t>(high) << 32 | (low & ~7u));
    int self = static_cast<int>(low & 7);
    ModelMemory memory(*run, self);
    run->fibers_[self].body(memory);
    run->fibers_[self].finished = true;
  }
  // The fiber stops here until the scheduler lets it do this access.
  void point(int self, Access access) {
    Fiber& fiber = fibers_[self];
    fiber.next = access;
    swapcontext(&fiber.context, &scheduler_);
    ++fiber.clock[self];
  }
  void complain(const std::string& what) {
    if (failure.empty()) failure = what;
  }

  struct Word {
    uint32_t value = 0;
    Clock released{};
  };
  struct Payload {
    uint32_t halves[2] = {0, 0};
    Clock written{};
  };
  const Breakage breakage_;
  const int kill_after_;
  int producer_steps_ = 0;
  alignas(8) ucontext_t scheduler_{};
  std::array<Fiber, kThreads> fibers_;
  std::map<uint64_t, Word> words_;
  std::map<uint32_t, Payload> payloads_;
};

void join(Clock& into, const Clock& from) {
  for (int i = 0; i < kThreads; ++i) into[i] = std::max(into[i], from[i]);
}

uint32_t ModelMemory::load(KvWord word, std::memory_order order) {
  run_.point(self_, {place_of(word), false});
  Run::Word& at = run_.words_[place_of(word)];
  if (order == std::memory_order_acquire) join(run_.fibers_[self_].clock, at.released);
  return at.value;
}

void ModelMemory::store(KvWord word, uint32_t value, std::memory_order order) {
  run_.point(self_, {place_of(word), true});
  Run::Word& at = run_.words_[place_of(word)];
  at.value = value;
  at.released = order == std::memory_order_release ? run_.fibers_[self_].clock : Clock{};
}

bool ModelMemory::exchange(KvWord word, uint32_t from, uint32_t to) {
  run_.point(self_, {place_of(word), true});
  Run::Word& at = run_.words_[place_of(word)];
  join(run_.fibers_[self_].clock, at.released);
  if (at.value != from) return false;
  at.value = to;
  if (!run_.breakage_.relaxed_commit) join(at.released, run_.fibers_[self_].clock);
  return true;
}

void ModelMemory::add_one(KvWord word) {
  run_.point(self_, {place_of(word), true});
  Run::Word& at = run_.words_[place_of(word)];
  ++at.value;
  // Broken: without this the event itself would order the payload.
  if (!run_.breakage_.relaxed_commit) join(at.released, run_.fibers_[self_].clock);
}

void ModelMemory::wake(KvWord word) {
  run_.point(self_, {place_of(word), true});
  if (run_.breakage_.no_wake) return;
  for (Fiber& fiber : run_.fibers_) fiber.asleep = false;
}

bool ModelMemory::sleep(KvWord word, uint32_t seen) {
  run_.point(self_, {place_of(word), true});  // the kernel compares and queues in one step
  Fiber& fiber = run_.fibers_[self_];
  if (!run_.breakage_.blind_sleep && run_.words_[place_of(word)].value != seen) return true;
  fiber.asleep = true;
  run_.point(self_, {place_of(word), false});
  return true;
}

bool ModelMemory::peer_died() {
  run_.point(self_, {kLifePlace, false});
  return !run_.breakage_.ignores_death && run_.fibers_[0].killed;
}

void ModelMemory::write_payload(uint32_t block, uint32_t value) {
  for (uint32_t& half : run_.payloads_[block].halves) {
    run_.point(self_, {kPayloadPlace + block, true});
    half = value;
    run_.payloads_[block].written = run_.fibers_[self_].clock;
  }
}

uint32_t ModelMemory::read_payload(uint32_t block) {
  run_.point(self_, {kPayloadPlace + block, false});
  const Run::Payload& payload = run_.payloads_[block];
  if (payload.written[0] > run_.fibers_[self_].clock[0])
    run_.complain("a payload was read that nothing orders after its writing");
  if (payload.halves[0] != payload.halves[1]) run_.complain("a payload was read half written");
  return payload.halves[0];
}

struct Outcome {
  uint64_t executions = 0, steps = 0;
  std::set<std::string> failures;
  std::set<std::string> results;  // what the consumer saw, over all executions
};

// Depth-first over the choices; a sleep set holds the fibers whose next access was already tried in a sibling and
// commutes with all that has happened since.
class Search {
 public:
  using Bodies = std::function<std::array<std::function<void(ModelMemory&)>, kThreads>(std::string& result)>;
  Search(Bodies bodies, Breakage breakage, int kill_after)
      : bodies_(std::move(bodies)), breakage_(breakage), kill_after_(kill_after) {}

  Outcome explore() {
    std::vector<int> prefix;
    extend(prefix, {});
    return outcome_;
  }

 private:
  struct Replayed {
    std::unique_ptr<Run> run;
    std::unique_ptr<std::string> result;
  };
  Replayed replay(const std::vector<int>& prefix) {
    auto result = std::make_unique<std::string>();
    auto run = std::make_unique<Run>(bodies_(*result), breakage_, kill_after_);
    for (int choice : prefix) run->step(choice);
    outcome_.steps += prefix.size();
    return {std::move(run), std::move(result)};
  }

  void extend(std::vector<int>& prefix, std::set<int> sleeping) {
    Replayed now = replay(prefix);
    ASSERT_LT(prefix.size(), 400u) << "an execution without end";
    std::vector<int> able;
    std::array<Access, kThreads> next;
    for (int i = 0; i < kThreads; ++i) {
      next[i] = now.run->next(i);
      if (now.run->can_run(i)) able.push_back(i);
    }
    if (able.empty()) {
      ++outcome_.executions;
      if (!now.run->finished()) now.run->failure = "deadlock: the consumer sleeps and nobody will wake it";
      if (!now.run->failure.empty()) outcome_.failures.insert(now.run->failure);
      outcome_.results.insert(*now.result);
      return;
    }
    now.run.reset();
    for (int choice : able) {
      if (sleeping.contains(choice)) continue;
      std::set<int> child;
      for (int other : sleeping)
        if (next[other].commutes_with(next[choice])) child.insert(other);
      prefix.push_back(choice);
      extend(prefix, child);
      prefix.pop_back();
      sleeping.insert(choice);
    }
  }

  Bodies bodies_;
  Breakage breakage_;
  int kill_after_;
  Outcome outcome_;
};

const char* name_of(KvOutcome outcome) {
  constexpr const char* kNames[] = {"ready", "not yet", "finished without", "aborted", "peer died", "deadline"};
  return kNames[static_cast<int>(outcome)];
}

// The producer writes block 1, then block 0, and finishes; block 2 is left out. The consumer waits for one block, reads
// it, then waits for the end.
Search::Bodies transfer(uint32_t wanted) {
  return [wanted](std::string& result) -> std::array<std::function<void(ModelMemory&)>, kThreads> {
    return {[](ModelMemory& memory) {
              for (uint32_t block : {1u, 0u}) {
                kv_begin(memory, block);
                memory.write_payload(block, 70 + block);
                kv_commit(memory, block);
              }
              kv_close(memory, kKvFinished, 32);
            },
            [wanted, &result](ModelMemory& memory) {
              KvOutcome got = kv_wait(memory, [&] { return kv_look_at_block(memory, wanted); });
              result = name_of(got);
              if (got == KvOutcome::kReady) result += " " + std::to_string(memory.read_payload(wanted));
              KvOutcome end = kv_wait(memory, [&] { return kv_look_at_end(memory); });
              result += std::string(", ") + name_of(end);
              if (end == KvOutcome::kReady) result += " " + std::to_string(kv_token_count(memory));
            }};
  };
}

using Texts = std::set<std::string>;

TEST(KvInterleavings, EveryOrderDeliversTheWholeBlockAndTheCount) {
  Outcome out = Search(transfer(0), {}, -1).explore();
  EXPECT_EQ(out.failures, Texts());
  EXPECT_EQ(out.results, Texts({"ready 70, ready 32"}));
  EXPECT_GT(out.executions, 50u);
  std::printf("[ explored ] %lu executions, %lu steps\n", out.executions, out.steps);
}

TEST(KvInterleavings, ABlockThatNeverComesIsToldAsSuchAndOneCommittedBeforeTheCloseNever) {
  Outcome out = Search(transfer(2), {}, -1).explore();
  EXPECT_EQ(out.failures, Texts());
  EXPECT_EQ(out.results, Texts({"finished without, ready 32"}));
  EXPECT_EQ(Search(transfer(1), {}, -1).explore().results, Texts({"ready 71, ready 32"}));
}

TEST(KvInterleavings, AnAbortReachesTheWaiterInEveryOrder) {
  auto bodies = [](std::string& result) -> std::array<std::function<void(ModelMemory&)>, kThreads> {
    return {[](ModelMemory& memory) {
              kv_begin(memory, 0);
              memory.write_payload(0, 7);
              kv_close(memory, kKvAborted, 0);
              kv_close(memory, kKvFinished, 16);  // too late: the first wins
            },
            [&result](ModelMemory& memory) {
              result = name_of(kv_wait(memory, [&] { return kv_look_at_block(memory, 0); }));
              result += std::string(", ") + name_of(kv_wait(memory, [&] { return kv_look_at_end(memory); }));
            }};
  };
  Outcome out = Search(bodies, {}, -1).explore();
  EXPECT_EQ(out.failures, Texts());
  EXPECT_EQ(out.results, Texts({"aborted, aborted"}));
}

// One block, the end, and a producer that stops after k of its steps, for every k: the consumer always comes back, with
// the block if it was committed, and never with half of one.
TEST(KvInterleavings, ADeathAtAnyStepWakesTheWaiter) {
  auto bodies = [](std::string& result) -> std::array<std::function<void(ModelMemory&)>, kThreads> {
    return {[](ModelMemory& memory) {
              kv_begin(memory, 0);
              memory.write_payload(0, 70);
              kv_commit(memory, 0);
              kv_close(memory, kKvFinished, 16);
            },
            [&result](ModelMemory& memory) {
              KvOutcome got = kv_wait(memory, [&] { return kv_look_at_block(memory, 0); });
              result = name_of(got);
              if (got == KvOutcome::kReady) result += " " + std::to_string(memory.read_payload(0));
            }};
  };
  uint64_t executions = 0;
  Texts results;
  for (int k = 0; k <= 12; ++k) {
    Outcome out = Search(bodies, {}, k).explore();
    EXPECT_EQ(out.failures, Texts()) << k;
    results.insert(out.results.begin(), out.results.end());
    executions += out.executions;
  }
  EXPECT_EQ(results, Texts({"peer died", "ready 70"}));
  std::printf("[ explored ] %lu executions\n", executions);
}

TEST(KvInterleavings, TheBlockStatesAreFinalWhoeverTries) {
  auto bodies = [](std::string& result) -> std::array<std::function<void(ModelMemory&)>, kThreads> {
    auto writer = [&result](ModelMemory& memory) {
      if (!kv_begin(memory, 0)) return;
      memory.write_payload(0, 1);
      if (kv_commit(memory, 0)) result += "written ";
      if (kv_commit(memory, 0) || kv_begin(memory, 0)) result += "twice ";
    };
    return {writer, writer};
  };
  Outcome out = Search(bodies, {}, -1).explore();
  EXPECT_EQ(out.failures, Texts());
  EXPECT_EQ(out.results, Texts({"written "}));
}

// ---- the checker finds what it is for ----

TEST(KvInterleavings, FindsACommitThatPublishesNothing) {
  Outcome out = Search(transfer(0), {.relaxed_commit = true}, -1).explore();
  EXPECT_TRUE(out.failures.contains("a payload was read that nothing orders after its writing"));
}

TEST(KvInterleavings, FindsALostWakeUp) {
  for (Breakage broken : {Breakage{.no_wake = true}, Breakage{.blind_sleep = true}})
    EXPECT_TRUE(Search(transfer(0), broken, -1)
                    .explore()
                    .failures.contains("deadlock: the consumer sleeps and nobody will wake it"));
}

TEST(KvInterleavings, FindsAReaderThatLooksInTheWrongOrder) {
  auto bodies = [](std::string& result) -> std::array<std::function<void(ModelMemory&)>, kThreads> {
    return {[](ModelMemory& memory) {
              kv_begin(memory, 0);
              kv_commit(memory, 0);
              kv_close(memory, kKvFinished, 16);
            },
            [&result](ModelMemory& memory) {
              result = name_of(kv_wait(memory, [&] {
                bool committed = memory.load({KvWord::kBlockState, 0}, std::memory_order_acquire) == kKvCommitted;
                uint32_t closed = memory.load({KvWord::kClosed}, std::memory_order_acquire);
                if (committed) return KvOutcome::kReady;
                return closed == kKvOpen ? KvOutcome::kNotYet : KvOutcome::kFinishedWithout;
              }));
            }};
  };
  EXPECT_TRUE(Search(bodies, {}, -1).explore().results.contains("finished without"));
}

TEST(KvInterleavings, FindsAWaiterThatNeverLearnsOfADeath) {
  auto bodies = [](std::string& result) -> std::array<std::function<void(ModelMemory&)>, kThreads> {
    return {[](ModelMemory& memory) { kv_begin(memory, 0); },
            [&result](ModelMemory& memory) {
              int looks = 0;
              result = name_of(
                  kv_wait(memory, [&] { return ++looks > 20 ? KvOutcome::kDeadline : kv_look_at_block(memory, 0); }));
            }};
  };
  EXPECT_TRUE(Search(bodies, {.ignores_death = true}, 1).explore().results.contains("deadline"));
  EXPECT_EQ(Search(bodies, {}, 1).explore().results, Texts({"peer died"}));
}

}  // namespace
}  // namespace tie::cache
