#include "inference/engine/engine_core.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/clock.h"

namespace tie::engine {
namespace {

constexpr size_t kZeroBytesPerStep = size_t{16} << 20;  // about a millisecond of writing
constexpr uint32_t kSmallestChunk = 32;
constexpr uint32_t kFirstChunkWithDecode = 128;  // before anything has been measured

uint64_t since(int64_t start_us, int64_t now_us) {
  return now_us > start_us ? static_cast<uint64_t>(now_us - start_us) : 0;
}

}  // namespace

Result<std::unique_ptr<EngineCore>> EngineCore::create(ForwardModel& model, TokenTable table, EngineOptions options) {
  const auto& config = model.config();
  if (table.size() == 0 || table.size() > config.n_vocab)
    return fail(Code::kBadRequest,
                fmt::format("the tokenizer has {} tokens, the model {}", table.size(), config.n_vocab));
  TIE_TRY(auto layout, bones::KvLayout::for_model(config, options.kv_type, options.block_tokens));
  const auto shared = model.kv_memory();
  const size_t kv_bytes = shared.empty() ? options.kv_bytes : std::min(options.kv_bytes, shared.size());
  TIE_TRY(auto kv,
          KvBlockPool::create_for(
              model, layout, static_cast<uint32_t>(std::min<size_t>(kv_bytes / layout.block_bytes(), UINT32_MAX))));
  auto capacity = uint64_t{kv.n_blocks()} * layout.block_tokens;
  auto context = static_cast<uint32_t>(std::min<uint64_t>(config.context_length, capacity));
  return std::unique_ptr<EngineCore>(
      new EngineCore(model, std::move(table), std::move(options), std::move(kv), context));
}

EngineCore::EngineCore(ForwardModel& model, TokenTable table, EngineOptions options, KvBlockPool kv, uint32_t context)
    : model_(model),
      table_(std::move(table)),
      options_(std::move(options)),
      context_(context),
      kv_(std::move(kv)),
      prefix_(options_.prefix, kv_),
      exports_(kv_),
      scheduler_(kv_, prefix_, options_.limits),
      masks_(options_.grammars ? *options_.grammars : trivial_grammars_, table_.size()) {
  uint32_t threads = options_.pool ? options_.pool->size() : 1;
  workspaces_.reserve(threads);
  for (uint32_t i = 0; i < threads; ++i) workspaces_.emplace_back(model.config().n_vocab);
  tasks_.reserve(options_.limits.max_sequences);
  wants_.reserve(scheduler_.logit_capacity());
  scored_rows_.reserve(scheduler_.logit_capacity());
  trace_rows_.reserve(options_.limits.max_sequences);
}

EngineCore::~EngineCore() = default;

Result<std::unique_ptr<Request>> EngineCore::prepare(RequestSpec spec) const {
  if (!spec.sink) return fail(Code::kInternal, "a request needs a sink");
  if (spec.prompt.empty()) return fail(Code::kBadRequest, "the prompt is empty");
  for (int32_t id : spec.prompt)
    if (!table_.contains(id))
      return fail(Code::kBadRequest,
                  fmt::format("token id {} is outside the vocabulary of {} tokens", id, table_.size()));
  if (spec.prompt.size() >= context_)
    return fail(
        Code::kContextExceeded,
        fmt::format("the prompt has {} tokens, but the context holds {} and at least one must be left to answer",
                    spec.prompt.size(), context_));
  TIE_CHECK_OK(check(spec.sampling, table_.size()));
  if (spec.sampling.n > options_.limits.max_sequences)
    return fail(Code::kBadRequest, fmt::format("n is {}, but this runtime computes at most {} samples at once",
                                               spec.sampling.n, options_.limits.max_sequences));
  if (spec.priority > kLowestPriority)
    return fail(Code::kBadRequest, fmt::format("priority must be between 0 and {}", kLowestPriority));
  if (spec.grammar && !spec.grammar->empty() && !options_.grammars)
    return fail(Code::kUnsupportedFeature, "this runtime enforces no grammar but the empty one");
  if (spec.sampling.prompt_logprobs && spec.kv_import) {  // what was computed earlier has no logits
    spec.kv_import.reset();
    spec.import_refused = true;
  }
  static std::atomic<uint64_t> next_id{1};
  uint32_t deadline_ms =
      spec.deadline_ms ? std::min(spec.deadline_ms, options_.max_deadline_ms) : options_.max_deadline_ms;
  auto request =
      std::make_unique<Request>(std::move(spec), next_id.fetch_add(1, std::memory_order_relaxed), context_, table_);
  request->deadline_us = request->submitted_us + int64_t{deadline_ms} * 1000;
  return request;
}

Result<void> EngineCore::add(std::unique_ptr<Request> request) {
  if (scheduler_.queue_full())
    return fail(Code::kOverloaded, fmt::format("{} requests are waiting already", scheduler_.n_waiting()));
  Request& r = *request;
  requests_.push_back(std::move(request));
  if (r.samples.front()->limit == 0 && !r.samples.front()->scores_prompt()) {  // max_tokens 0: nothing to compute
    end_without_output(r);
    return {};
  }
  if (r.spec.grammar) {
    std::vector<MaskSlot*> slots;
    for (auto& s : r.samples) slots.push_back(s->grammar.get());
    masks_.compile(*r.spec.grammar, std::move(slots));
  }
  scheduler_.enqueue(r);
  return {};
}

bool EngineCore::step(int64_t now_us) {
  end_cancelled_and_late(now_us);
  uint32_t chunk = options_.target_step_us == 0 ? options_.limits.max_rows
                   : prefill_us_per_row_ > 0
                       ? std::max(kSmallestChunk, static_cast<uint32_t>(options_.target_step_us / prefill_us_per_row_))
                       : kFirstChunkWithDecode;
  const Plan& plan = scheduler_.plan(now_us, chunk);
  if (plan.empty()) return false;
  ++step_;
  if (options_.trace) record(plan);
  int64_t began_us = monotonic_us();
  auto logits = model_.forward(batch_of(plan), kv_.view());
  if (!logits) {
    std::vector<Request*> broken;
    for (const auto& e : plan.entries)
      if (std::find(broken.begin(), broken.end(), &e.sequence->request) == broken.end())
        broken.push_back(&e.sequence->request);
    Error why{Code::kInternal, "the model failed: " + logits.error().message};
    for (auto* request : broken) end_request(*request, Finish::kError, why);
    return true;
  }
  adapt_prefill(plan, monotonic_us() - began_us);
  score_prompts(plan, *logits);
  collect_tasks(plan);
  draw_all(*logits);
  deliver_scores(plan);
  deliver(now_us + (monotonic_us() - began_us));
  kv_.zero_freed(kZeroBytesPerStep);
  return true;
}

bool EngineCore::transfer(size_t max_bytes) {
  size_t left = max_bytes;
  bool worked = false;
  for (Sequence* s = next_importing(); s && left > 0; s = next_importing()) {
    import_some(*s, left);
    worked = true;
  }
  return exports_.copy(left) || worked;
}

Sequence* EngineCore::next_importing() const {
  for (auto* s : scheduler_.running())
    if (s->importing) return s;
  return nullptr;
}

// The prompt's last token is always computed: its logits are wanted.
void EngineCore::import_some(Sequence& s, size_t& left) {
  KvImport& source = *s.request.spec.kv_import;
  Usage& usage = s.request.usage;
  const uint32_t block_tokens = kv_.layout().block_tokens;
  const size_t block_bytes = kv_.layout().block_bytes();
  const uint32_t wanted = std::min(source.block_count(), (s.n_prompt - 1) / block_tokens);
  uint32_t at = s.n_cached / block_tokens;
  while (at < wanted && left > 0) {
    if (!scheduler_.reserve_next_block(s)) break;  // no room just now: the rest is computed
    if (!source.read(at, kv_.to_write(s.blocks[at])) || !kv_.written(s.blocks[at])) {
      scheduler_.drop_imported(s);
      break;
    }
    s.n_cached = ++at * block_tokens;
    left -= std::min(left, block_bytes);
  }
  if (at < wanted && left == 0) return;  // goes on in the next round
  usage.imported_tokens = s.n_cached - s.n_lent;
  usage.import_refused = s.n_cached == s.n_lent;
  s.importing = false;
  s.request.spec.kv_import.reset();
}

void EngineCore::begin_export(Sequence& s) {
  if (!s.request.spec.kv_export || s.sample != 0) return;
  const uint32_t whole = s.n_cached / kv_.layout().block_tokens;
  auto blocks = std::span(s.blocks).first(std::min<size_t>(whole, s.blocks.size()));
  s.request.usage.exported_tokens =
      exports_.begin(std::move(s.request.spec.kv_export), blocks) * kv_.layout().block_tokens;
}

void EngineCore::settle() {
  kv_.zero_freed(SIZE_MAX);
}

void EngineCore::end_all(const Error& why) {
  exports_.abandon_all();
  while (!requests_.empty())
    end_request(*requests_.back(), why.code == Code::kCancelled ? Finish::kCancelled : Finish::kError, why);
  settle();
}

void EngineCore::end_cancelled_and_late(int64_t now_us) {
  for (size_t i = requests_.size(); i-- > 0;) {
    Request& r = *requests_[i];
    if (r.handle->cancelled.load(std::memory_order_relaxed)) {
      end_request(r, Finish::kCancelled, {Code::kCancelled, error_info(Code::kCancelled).sentence});
    } else if (now_us >= r.deadline_us) {
      end_request(r, Finish::kError, {Code::kDeadline, error_info(Code::kDeadline).sentence});
    } else if (!r.admitted && r.samples.front()->grammar && r.grammar_ready() && r.samples.front()->grammar->error) {
      Error why = *r.samples.front()->grammar->error;
      end_request(r, Finish::kError, why);
    }
  }
}

void EngineCore::end_request(Request& r, Finish finish, const Error& why) {
  if (!r.admitted) scheduler_.forget(r);
  for (auto& s : r.samples) {
    if (s->finish == Finish::kNone) {
      s->end(finish);
      r.spec.sink->on_output({.sample = s->sample, .finish = finish});
    }
    scheduler_.retire(*s);
  }
  finish_request(r, &why);
}

// All samples, none of which may have a token.
void EngineCore::end_without_output(Request& r) {
  for (auto& s : r.samples) {
    s->end(Finish::kLength);
    r.spec.sink->on_output(s->output());
    scheduler_.retire(*s);
  }
  finish_request(r, nullptr);
}

void EngineCore::finish_request(Request& r, const Error* why) {
  if (r.spec.kv_export) std::exchange(r.spec.kv_export, nullptr)->abandon();
  r.spec.sink->on_end(r.usage, why);
  ++n_ended_;
  auto at = std::find_if(requests_.begin(), requests_.end(), [&](const auto& owned) { return owned.get() == &r; });
  std::swap(*at, requests_.back());
  if (r.spec.grammar)
    masks_.dispose(std::shared_ptr<Request>(std::move(requests_.back())));  // its grammar may still be at work
  requests_.pop_back();
}

// A row comes as its best ids where its sampler needs no more.
bones::Batch EngineCore::batch_of(const Plan& plan) {
  bones::Batch batch = plan.batch();
  wants_.clear();
  if (!model_.finds_best()) return batch;
  wants_.resize(plan.logit_rows.size());
  for (const auto& e : plan.entries) {
    if (!e.wants_logits) continue;
    for (uint32_t i = 0; i <= e.n_draft; ++i) wants_[e.first_logit_row + e.n_scored + i] = wanted_of(*e.sequence, i);
  }
  batch.best = wants_;
  return batch;
}

// `ahead`: which row of a draft. A mask that is not there yet cannot be handed down: then the row comes whole.
bones::BestOf EngineCore::wanted_of(const Sequence& s, uint32_t ahead) const {
  bones::BestOf out{.below = table_.size()};
  if (s.grammar) {
    if (ahead > 0 || !s.grammar->ready() || s.grammar->error || s.grammar->state != GrammarState::kOpen) return out;
    out.mask = s.grammar->mask.data();
  }
  out.k = s.sampler.best_needed(s.below_min_tokens(ahead));
  return out;
}

void EngineCore::collect_tasks(const Plan& plan) {
  tasks_.clear();
  for (const auto& e : plan.entries) {
    Sequence& s = *e.sequence;
    if (!e.wants_logits) {
      s.n_cached += e.n_rows;
      continue;
    }
    auto draft = std::span(plan.tokens).subspan(e.first_row + e.n_rows - e.n_draft, e.n_draft);
    bool fork = !s.request.forked && s.request.samples.size() > 1;
    const uint32_t first_logit_row = e.first_logit_row + e.n_scored;
    tasks_.push_back({&s, first_logit_row, e.n_draft + 1, draft, fork});
    if (!fork) continue;
    scheduler_.fork(s.request);
    for (size_t i = 1; i < s.request.samples.size(); ++i)
      tasks_.push_back({s.request.samples[i].get(), first_logit_row, 1, {}, true});
  }
}

// body(i, workspace) for i below count, spread over the pool.
template <typename Body>
void EngineCore::for_each_of(size_t count, const Body& body) {
  if (!options_.pool || count <= 1) {
    for (size_t i = 0; i < count; ++i) body(i, workspaces_[0]);
    return;
  }
  std::atomic<size_t> next{0};
  auto share = [&](uint32_t thread) {
    for (size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) body(i, workspaces_[thread]);
  };
  options_.pool->run(share);
}

// Before any token is drawn: drawing changes its rows.
void EngineCore::score_prompts(const Plan& plan, const bones::Logits& logits) {
  if (plan.scored_rows == 0) return;
  scored_rows_.clear();
  for (const auto& e : plan.entries) {
    Sequence& s = *e.sequence;
    if (e.n_scored == 0) continue;
    s.prompt_logprobs.resize(e.n_scored);  // its memory was reserved when the request was built
    const size_t first = std::max(s.n_scored, s.n_cached) + 1;
    for (uint32_t i = 0; i < e.n_scored; ++i)
      scored_rows_.push_back(
          {e.first_logit_row + i, s.tokens[first + i], s.request.spec.sampling.top_logprobs, &s.prompt_logprobs[i]});
    s.n_scored = static_cast<uint32_t>(first - 1) + e.n_scored;
  }
  for_each_of(scored_rows_.size(), [&](size_t i, SamplerWorkspace& workspace) {
    const ScoredRow& scored = scored_rows_[i];
    score_token(logits.row(scored.logit_row).first(table_.size()), scored.token, scored.n_top, workspace, *scored.out);
  });
}

// A request that wanted nothing but the scores of its prompt ends here.
void EngineCore::deliver_scores(const Plan& plan) {
  if (plan.scored_rows == 0) return;
  for (const auto& e : plan.entries) {
    if (e.n_scored == 0) continue;
    Sequence& s = *e.sequence;
    s.request.spec.sink->on_output({.sample = s.sample, .prompt_logprobs = s.prompt_logprobs});
    s.prompt_logprobs.clear();
    if (s.limit == 0 && !s.scores_prompt()) end_without_output(s.request);
  }
}

void EngineCore::draw_all(const bones::Logits& logits) {
  for_each_of(tasks_.size(), [&](size_t i, SamplerWorkspace& workspace) { draw(tasks_[i], logits, workspace); });
}

// Touches nothing but its own sequence (and the request's counters, summed up in deliver), so samples draw in parallel.
// A draft needs a mask for each of its tokens: but for the first they are computed here, as only the one before tells.
void EngineCore::draw(Task& task, const bones::Logits& logits, SamplerWorkspace& workspace) const {
  Sequence& s = *task.sequence;
  for (uint32_t i = 0; i < task.n_rows; ++i) {
    const uint32_t at = task.first_logit_row + i;
    DrawRequest request;
    std::span<const Candidate> best;
    if (!wants_.empty() && wants_[at].k > 0) {
      best = logits.best.row(at);
      request.best = &best;
    } else {
      request.row = logits.row(at);
    }
    if (task.shared_row && !request.best) {
      std::copy(request.row.begin(), request.row.end(), workspace.shared_row.begin());
      request.row = std::span(workspace.shared_row).first(request.row.size());
    }
    int32_t token = -1;
    if (!draw_one(s, request, workspace, &token)) break;
    if (i < task.draft.size() && (s.finish != Finish::kNone || token != task.draft[i])) break;
    if (i == task.draft.size()) break;
    ++s.accepted_in_step;
    if (s.grammar) MaskWorker::advance_here(*s.grammar, token);
  }
  s.n_cached = static_cast<uint32_t>(s.tokens.size()) - 1;
}

// `request` says what there is to draw from.
bool EngineCore::draw_one(Sequence& s, DrawRequest request, SamplerWorkspace& workspace, int32_t* token) const {
  request.position = s.n_output();
  request.forbid_end = s.below_min_tokens();
  if (s.grammar) {
    MaskWorker::wait(*s.grammar);
    if (s.grammar->error) {
      s.error = *s.grammar->error;
      s.end(Finish::kError);
      return false;
    }
    if (s.grammar->state == GrammarState::kComplete) {
      s.end(Finish::kGrammarEnd);
      return false;
    }
    request.mask = s.grammar->mask;
  }
  TokenLogprobs logprobs;
  bool wanted = s.request.spec.sampling.logprobs;
  *token = s.sampler.draw(request, workspace, wanted ? &logprobs : nullptr);
  if (*token >= 0) {
    s.commit(*token, wanted ? &logprobs : nullptr);
  } else if (s.grammar && request.forbid_end) {
    s.end(Finish::kGrammarEnd);  // the text is complete before min_tokens: the grammar wins
  } else {
    s.error =
        Error{Code::kInternal, s.grammar ? "the grammar leaves no token to choose" : "the model gave no usable logits"};
    s.end(Finish::kError);
  }
  return *token >= 0;
}

void EngineCore::deliver(int64_t now_us) {
  for (auto& task : tasks_) {
    Sequence& s = *task.sequence;
    if (s.grammar && s.finish == Finish::kNone) masks_.advance(*s.grammar, s.tokens.back());
  }
  masks_.flush();
  for (auto& task : tasks_) {
    if (!task.draft.empty()) {
      Sequence& s = *task.sequence;
      s.drafter.learn(static_cast<uint32_t>(task.draft.size()), s.accepted_in_step);
      s.request.usage.drafted_tokens += static_cast<uint32_t>(task.draft.size());
      s.request.usage.accepted_draft_tokens += s.accepted_in_step;
      s.accepted_in_step = 0;
    }
  }
  for (auto& task : tasks_)
    if (task.sequence) deliver(*task.sequence, now_us);
}

void EngineCore::deliver(Sequence& s, int64_t now_us) {
  Request& r = s.request;
  r.usage.completion_tokens = 0;
  for (const auto& sample : r.samples) r.usage.completion_tokens += sample->n_output();
  if (r.usage.first_token_us == 0 && r.usage.completion_tokens > 0)
    r.usage.first_token_us = since(r.submitted_us, now_us);
  if (s.error) {
    Error why = *s.error;
    for (auto& task : tasks_)
      if (task.sequence && &task.sequence->request == &r) task.sequence = nullptr;  // the request is gone after this
    return end_request(r, Finish::kError, why);
  }
  if (s.has_output()) {
    r.spec.sink->on_output(s.output());
    s.sent();
  }
  if (s.finish == Finish::kNone) return;
  begin_export(s);
  scheduler_.retire(s);
  if (--r.unfinished == 0) finish_request(r, nullptr);
}

void EngineCore::record(const Plan& plan) {
  trace_rows_.clear();
  for (const auto& e : plan.entries)
    trace_rows_.push_back({e.sequence->request.handle->id, e.sequence->sample, e.sequence->n_cached, e.n_rows,
                           e.n_draft, e.wants_logits && e.n_rows == e.n_draft + 1 && e.sequence->n_output() > 0});
  options_.trace(step_, trace_rows_);
}

// Moving average of what a row of a prompt costs, from steps that are mostly prompt, none of it scored.
void EngineCore::adapt_prefill(const Plan& plan, int64_t took_us) {
  if (options_.target_step_us == 0 || plan.prefill_rows < kSmallestChunk || plan.scored_rows > 0) return;
  double per_row = static_cast<double>(took_us) / static_cast<double>(plan.tokens.size());
  prefill_us_per_row_ = prefill_us_per_row_ == 0 ? per_row : 0.8 * prefill_us_per_row_ + 0.2 * per_row;
}

}  // namespace tie::engine
