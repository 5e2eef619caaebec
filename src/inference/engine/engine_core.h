// The engine without its thread: requests go in, step() runs one forward pass and delivers what it produced.
// Deterministic for a given sequence of calls, which is what the tests drive; Engine (engine.h) is this behind a queue
// and a thread. Threads: one at a time. Sinks are called from step() and add(). Nothing is allocated in a step but what
// a finished or new request needs.
#pragma once
#include <memory>
#include <vector>

#include "inference/bones/thread_pool.h"
#include "inference/engine/forward_model.h"
#include "inference/engine/kv_pool.h"
#include "inference/engine/mask_worker.h"
#include "inference/engine/request.h"
#include "inference/engine/scheduler.h"
#include "inference/engine/step_trace.h"

namespace tie::engine {

struct EngineOptions {
  SchedulerLimits limits;
  size_t kv_bytes = size_t{512} << 20;
  uint32_t block_tokens = 32;
  bones::KvType kv_type = bones::KvType::kF16;
  uint32_t max_deadline_ms = 15 * 60 * 1000;
  uint32_t target_step_us =
      40'000;  // chunks are cut so that decoding requests wait no longer than this for a step; 0 = never cut
  bones::ThreadPool* pool = nullptr;    // sampling of several sequences is spread over it; null = one thread
  GrammarCompiler* grammars = nullptr;  // null = the trivial grammar only; else it must outlive the engine
  PrefixSource* prefix = nullptr;  // null = no system-prompt prefix cache; its blocks have this engine's KV layout;
                                   // must outlive the engine
  StepTrace trace;
};

class EngineCore {
 public:
  // `model` must outlive the core. kBadRequest for options that fit no block.
  static Result<std::unique_ptr<EngineCore>> create(ForwardModel& model, TokenTable table, EngineOptions options);
  ~EngineCore();

  // Checks a request and builds it. Any thread. Errors: kBadRequest, kContextExceeded (names prompt and context),
  // kUnsupportedFeature.
  Result<std::unique_ptr<Request>> prepare(RequestSpec spec) const;

  // Takes a prepared request. kOverloaded when the queue is full (then the sink has not been called).
  Result<void> add(std::unique_ptr<Request> request);

  // The calling thread is the one that will call step() from now on.
  void begin_thread() {
    if (options_.pool) options_.pool->keep_caller_on_its_cpu();
  }
  // One forward pass, with all that ends before and after it. False when there was nothing to compute.
  bool step(int64_t now_us);
  // Copies KV blocks in for requests that continue an earlier turn, and out for those that have ended, about max_bytes
  // of them. Between steps, after what they produced was passed on. True when there was anything to do.
  bool transfer(size_t max_bytes);
  // Overwrites all freed KV memory; for when step() had nothing to do.
  void settle();
  // Ends everything.
  void end_all(const Error& why);

  bool idle() const { return requests_.empty(); }
  size_t n_requests() const { return requests_.size(); }
  uint64_t n_ended() const { return n_ended_; }  // requests that add() took and that have ended
  const SchedulerLimits& limits() const { return options_.limits; }
  uint32_t context() const {
    return context_;
  }  // most tokens of one sequence: the model's context, less when the KV memory is smaller
  const TokenTable& table() const { return table_; }
  const KvBlockPool& kv() const { return kv_; }
  const PrefixBlocks& prefix() const { return prefix_; }
  const Scheduler& scheduler() const { return scheduler_; }
  const bones::ModelConfig& model_config() const { return model_.config(); }

 private:
  struct Task {  // one sample that draws in this step
    Sequence* sequence = nullptr;
    uint32_t first_logit_row = 0, n_rows = 1;
    std::span<const int32_t> draft;
    bool shared_row = false;
  };
  struct ScoredRow {  // a row of a prompt, and where the log-probability of the token behind it goes
    uint32_t logit_row = 0;
    int32_t token = 0;
    uint32_t n_top = 0;
    TokenLogprobs* out = nullptr;
  };
  EngineCore(ForwardModel& model, TokenTable table, EngineOptions options, KvBlockPool kv, uint32_t context);

  void end_cancelled_and_late(int64_t now_us);
  void end_request(Request& request, Finish finish, const Error& why);
  void finish_request(Request& request, const Error* why);
  void end_without_output(Request& request);
  bones::Batch batch_of(const Plan& plan);
  bones::BestOf wanted_of(const Sequence& sequence, uint32_t ahead) const;
  void collect_tasks(const Plan& plan);
  void score_prompts(const Plan& plan, const bones::Logits& logits);
  void deliver_scores(const Plan& plan);
  template <typename Body>
  void for_each_of(size_t count, const Body& body);
  void draw_all(const bones::Logits& logits);
  void draw(Task& task, const bones::Logits& logits, SamplerWorkspace& workspace) const;
  bool draw_one(Sequence& sequence, DrawRequest request, SamplerWorkspace& workspace, int32_t* token) const;
  void deliver(int64_t now_us);
  void deliver(Sequence& sequence, int64_t now_us);
  Sequence* next_importing() const;
  void import_some(Sequence& sequence, size_t& left);
  void begin_export(Sequence& sequence);
  void record(const Plan& plan);
  void adapt_prefill(const Plan& plan, int64_t took_us);

  ForwardModel& model_;
  const TokenTable table_;
  const EngineOptions options_;
  const uint32_t context_;
  KvBlockPool kv_;
  PrefixBlocks prefix_;
  KvExports exports_;
  Scheduler scheduler_;
  TrivialGrammarCompiler trivial_grammars_;
  MaskWorker masks_;
  std::vector<SamplerWorkspace> workspaces_;  // one per thread of the pool
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<Task> tasks_;
  std::vector<bones::BestOf> wants_;  // of each row of logits of this step; empty: all come whole
  std::vector<ScoredRow> scored_rows_;
  std::vector<StepRow> trace_rows_;
  uint64_t step_ = 0;
  uint64_t n_ended_ = 0;
  double prefill_us_per_row_ = 0;
};

}  // namespace tie::engine
