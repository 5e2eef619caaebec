// The two threads that run grammars: one compiles them when a request arrives (and takes finished ones apart), the
// other computes each next mask while the forward pass runs, so that a slow compilation delays nobody's masks. A
// MaskSlot belongs to one sample. It is either with a worker (after compile() or advance()) or with the engine (when
// ready() is true); the flag hands it over, so neither side locks. Whoever destroys a slot waits for it first.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "inference/engine/constraint.h"

namespace tie::engine {

struct MaskSlot {
  std::unique_ptr<Constraint> constraint;
  std::vector<uint32_t> mask;
  GrammarState state = GrammarState::kOpen;
  std::optional<Error> error;
  int32_t token = 0;  // to be consumed by advance()
  std::atomic<bool> with_engine{true};

  bool ready() const { return with_engine.load(std::memory_order_acquire); }
};

class MaskWorker {
 public:
  // `compiler` must outlive the worker. vocabulary: bits of a mask.
  MaskWorker(GrammarCompiler& compiler, uint32_t vocabulary);
  // Finishes every job first.
  ~MaskWorker() = default;

  // Compiles `grammar` and fills each of the slots (one per sample) with a constraint and its first mask. `slots` and
  // `grammar` stay where they are.
  void compile(const std::string& grammar, std::vector<MaskSlot*> slots);
  // Destroys what `owner` holds on the compiling thread, behind its compilation: freeing a grammar takes time, too.
  void dispose(std::shared_ptr<void> owner);
  // The sample's next token is known: consume it and compute the mask after it. Nothing starts before flush(), so that
  // one wake-up serves a whole step.
  void advance(MaskSlot& slot, int32_t token);
  void flush();
  // The same at once, on the calling thread, of a slot that is with the engine; for tokens of a draft.
  static void advance_here(MaskSlot& slot, int32_t token);
  // Returns when the slot is with the engine again.
  static void wait(MaskSlot& slot);

 private:
  // A queue with a thread.
  class Lane {
   public:
    using Job = std::function<void()>;
    explicit Lane(const char* name);
    ~Lane();
    void post(Job job);
    void post_all(std::vector<MaskSlot*>& slots);  // one advance_now each; empties the list

   private:
    void run();
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<Job> jobs_;
    bool stopping_ = false;
    std::thread thread_;
  };
  void compile_now(const std::string& grammar, const std::vector<MaskSlot*>& slots);
  static void advance_now(MaskSlot& slot);
  static void hand_back(MaskSlot& slot);

  GrammarCompiler& compiler_;
  const uint32_t mask_words_;
  std::vector<MaskSlot*> posted_;  // engine thread only, until flush()
  Lane masks_, compilations_;      // the compiling lane ends first: what it destroys may still be with the other
};

}  // namespace tie::engine
