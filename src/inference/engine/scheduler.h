// Decides what each forward pass computes: which sequences decode, which chunk of which prompt is read, who is
// admitted, who must give up KV blocks. Pure bookkeeping over sequences and the block pool: no model, no clock of its
// own, no threads. Rules: decodes first; then prompts within the row budget, oldest first, but a prompt too long for
// this step leaves up to half of the budget to later ones that can be read whole. The oldest sequence can always take
// the blocks of younger ones (they are recomputed later), so it always moves and every request ends. Waiting requests
// are admitted by priority, then arrival; waiting raises the priority. A prompt whose tokens are scored needs logits of
// every row: it gets what rows of logits the others leave, at least one.
#pragma once
#include <cstdint>
#include <deque>
#include <vector>

#include "inference/bones/model.h"
#include "inference/engine/kv_pool.h"
#include "inference/engine/prefix_blocks.h"
#include "inference/engine/request.h"

namespace tie::engine {

struct SchedulerLimits {
  uint32_t max_rows = 512;           // tokens in one forward pass
  uint32_t max_sequences = 64;       // admitted samples
  uint32_t max_waiting = 256;        // requests
  uint32_t max_draft_sequences = 1;  // speculation only while so few sequences run; 0 = never
};

struct PlanEntry {
  Sequence* sequence = nullptr;
  uint32_t first_row = 0;
  uint32_t n_rows = 0;
  uint32_t n_draft = 0;          // of the rows, at the end
  uint32_t n_scored = 0;         // of the rows: those whose logits score the prompt's next tokens
  bool wants_logits = false;     // the rows reach the end of what is known, and a token is drawn
  uint32_t first_logit_row = 0;  // index into the logits: first n_scored, then those to draw from, 1 + n_draft
};

// What one forward pass does. The spans of `batch` point into the plan.
struct Plan {
  std::vector<PlanEntry> entries;
  std::vector<int32_t> tokens;
  std::vector<bones::SequenceSpan> spans;
  std::vector<uint32_t> logit_rows;
  uint32_t prefill_rows = 0;
  uint32_t scored_rows = 0;
  bool empty() const { return entries.empty(); }
  bones::Batch batch() const { return {tokens, spans, logit_rows, {}}; }
};

class Scheduler {
 public:
  Scheduler(KvBlockPool& pool, PrefixBlocks& prefix, const SchedulerLimits& limits);

  bool queue_full() const { return waiting_.size() >= limits_.max_waiting; }
  void enqueue(Request& request);
  // Rows of logits that a step may have: those that decodes and drafts may need. Scoring prompts share them, so a
  // prompt that is scored costs time and no memory.
  uint32_t logit_capacity() const { return logit_capacity_; }
  // Builds the next step. prefill_rows_with_decode: most prompt tokens in a step that also decodes.
  const Plan& plan(int64_t now_us, uint32_t prefill_rows_with_decode);
  // The first sample's prompt is in the cache: the others start from the same blocks.
  void fork(Request& request);
  // Gives back the sample's blocks and its place. Also for samples that never started.
  void retire(Sequence& sequence);
  // A request that was never admitted.
  void forget(Request& request);
  // Room for the block behind what a sequence has, taken from others if need be. False when there is none.
  bool reserve_next_block(Sequence& sequence);
  // Takes what was imported from a sequence again: its blocks behind those of the prefix cache.
  void drop_imported(Sequence& sequence);

  const std::vector<Sequence*>& running() const { return running_; }
  size_t n_waiting() const { return waiting_.size(); }
  uint64_t n_preemptions() const { return n_preemptions_; }

 private:
  void resume_preempted();
  void admit(int64_t now_us);
  Request* next_waiting(int64_t now_us) const;
  bool fits(uint32_t blocks) const;
  void place_decodes();
  void place_prefills(uint32_t budget, bool with_decode);
  uint32_t readable(size_t index, uint32_t budget, bool with_decode) const;
  bool place(Sequence& sequence, uint32_t n_rows, std::span<const int32_t> draft);
  void add_scored_rows(const Sequence& sequence, PlanEntry& entry);
  bool reserve(Sequence& sequence, uint32_t end);
  bool make_room(const Sequence& needy);
  void preempt(Sequence& sequence);
  void start(Sequence& sequence);

  KvBlockPool& pool_;
  PrefixBlocks& prefix_;
  const SchedulerLimits limits_;
  const uint32_t logit_capacity_;
  std::vector<Request*> waiting_;     // in order of arrival
  std::vector<Sequence*> running_;    // by stamp
  std::vector<Sequence*> preempted_;  // by stamp
  uint32_t places_ = 0;               // samples admitted and not retired
  uint64_t next_stamp_ = 1;
  uint64_t n_preemptions_ = 0;
  Plan plan_;
};

}  // namespace tie::engine
