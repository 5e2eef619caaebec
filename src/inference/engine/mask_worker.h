// The thread that runs grammars: compiles them when a request arrives and computes each next mask while the forward pass runs.
// A MaskSlot belongs to one sample. It is either with the worker (after compile() or advance()) or with the engine (when ready() is true);
// the flag hands it over, so neither side locks. Whoever destroys a slot waits for it first.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
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
  int32_t token = 0;                       // to be consumed by advance()
  std::atomic<bool> with_engine{true};

  bool ready() const { return with_engine.load(std::memory_order_acquire); }
};

class MaskWorker {
 public:
  // `compiler` must outlive the worker. vocabulary: bits of a mask.
  MaskWorker(GrammarCompiler& compiler, uint32_t vocabulary);
  ~MaskWorker();

  // Compiles `grammar` and fills each of the slots (one per sample) with a constraint and its first mask. `slots` and `grammar` stay where they are.
  void compile(const std::string& grammar, std::vector<MaskSlot*> slots);
  // The sample's next token is known: consume it and compute the mask after it. Nothing starts before flush(), so that one wake-up serves a whole step.
  void advance(MaskSlot& slot, int32_t token);
  void flush();
  // Returns when the slot is with the engine again.
  static void wait(MaskSlot& slot);

 private:
  struct Job {
    const std::string* grammar = nullptr;  // null: advance
    std::vector<MaskSlot*> slots;
    MaskSlot* slot = nullptr;
  };
  void run();
  void compile_now(Job& job);
  static void advance_now(MaskSlot& slot);
  static void hand_back(MaskSlot& slot);

  GrammarCompiler& compiler_;
  const uint32_t mask_words_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  std::vector<MaskSlot*> posted_;          // engine thread only, until flush()
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tie::engine
