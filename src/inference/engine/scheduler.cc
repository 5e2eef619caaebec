#include "inference/engine/scheduler.h"

#include <algorithm>

namespace tie::engine {
namespace {

constexpr int64_t kPriorityStepUs = 1'000'000;  // a second of waiting is worth one class
constexpr uint32_t kScoredRowCost = 4;          // rows of a prompt whose logits nobody wants; a bound for small models

bool older(const Sequence* a, const Sequence* b) {
  return a->stamp < b->stamp;
}

void insert_by_stamp(std::vector<Sequence*>& list, Sequence* s) {
  list.insert(std::upper_bound(list.begin(), list.end(), s, older), s);
}

void remove_from(std::vector<Sequence*>& list, const Sequence* s) {
  if (auto at = std::find(list.begin(), list.end(), s); at != list.end()) list.erase(at);
}

}  // namespace

Scheduler::Scheduler(KvBlockPool& pool, PrefixBlocks& prefix, const SchedulerLimits& limits)
    : pool_(pool),
      prefix_(prefix),
      limits_(limits),
      logit_capacity_(limits.max_sequences + kMaxDraftTokens * limits.max_draft_sequences) {
  waiting_.reserve(limits.max_waiting);
  running_.reserve(limits.max_sequences);
  preempted_.reserve(limits.max_sequences);
  plan_.entries.reserve(limits.max_sequences);
  plan_.spans.reserve(limits.max_sequences);
  plan_.tokens.reserve(limits.max_rows);
  plan_.logit_rows.reserve(logit_capacity_);
}

void Scheduler::enqueue(Request& request) {
  // All that the sequence may ever need, drafts included, so that no step allocates.
  Sequence& first = *request.samples.front();
  if (first.scores_prompt()) first.prompt_logprobs.reserve(std::min(first.n_prompt, logit_capacity_));
  for (auto& sample : request.samples)
    sample->blocks.reserve(pool_.layout().blocks_for(static_cast<uint32_t>(sample->tokens.capacity())) + 1);
  waiting_.push_back(&request);
}

void Scheduler::forget(Request& request) {
  waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &request));
}

const Plan& Scheduler::plan(int64_t now_us, uint32_t prefill_rows_with_decode) {
  plan_.entries.clear();
  plan_.tokens.clear();
  plan_.spans.clear();
  plan_.logit_rows.clear();
  plan_.prefill_rows = plan_.scored_rows = 0;
  resume_preempted();
  admit(now_us);
  // Before anything is planned every younger sequence can give way, so the oldest is sure of its next chunk.
  if (!running_.empty())
    reserve(*running_.front(), running_.front()->n_cached + std::min(running_.front()->remaining(), limits_.max_rows));
  place_decodes();
  auto left = limits_.max_rows - static_cast<uint32_t>(plan_.tokens.size());
  bool with_decode = !plan_.tokens.empty();
  place_prefills(with_decode ? std::min(left, prefill_rows_with_decode) : left, with_decode);
  return plan_;
}

// Room for `blocks` more, beside what running prompts still need and one block of slack for each running sequence.
bool Scheduler::fits(uint32_t blocks) const {
  if (running_.empty()) return true;  // alone everything fits: checked when it was submitted
  uint64_t wanted = blocks + running_.size();
  for (const auto* s : running_) {
    uint32_t whole = pool_.layout().blocks_for(static_cast<uint32_t>(s->tokens.size()));
    if (whole > s->blocks.size()) wanted += whole - s->blocks.size();
  }
  return wanted <= uint64_t{pool_.free_blocks()} + prefix_.evictable();
}

void Scheduler::start(Sequence& s) {
  if (s.stamp == 0) s.stamp = next_stamp_++;
  s.phase = Phase::kRunning;
  s.n_lent = s.scores_prompt() ? 0 : prefix_.lend(s);
  if (s.n_lent > 0) s.request.usage.prefix_tokens = s.n_lent;
  s.importing = s.sample == 0 && s.request.spec.kv_import != nullptr;
  insert_by_stamp(running_, &s);
}

void Scheduler::resume_preempted() {
  while (!preempted_.empty()) {
    Sequence& s = *preempted_.front();
    if (!running_.empty() && !s.request.spec.sink->has_room()) return;
    if (!fits(pool_.layout().blocks_for(static_cast<uint32_t>(s.tokens.size())))) return;
    preempted_.erase(preempted_.begin());
    start(s);
  }
}

Request* Scheduler::next_waiting(int64_t now_us) const {
  Request* best = nullptr;
  int64_t best_class = 0;
  for (auto* r : waiting_) {
    if (!r->grammar_ready()) continue;
    int64_t its_class = static_cast<int64_t>(r->spec.priority) - (now_us - r->submitted_us) / kPriorityStepUs;
    if (best && its_class >= best_class) continue;
    best = r;
    best_class = its_class;
  }
  return best;
}

void Scheduler::admit(int64_t now_us) {
  while (preempted_.empty()) {  // those who gave way come back first
    Request* r = next_waiting(now_us);
    if (!r || places_ + r->samples.size() > limits_.max_sequences) return;
    if (!fits(pool_.layout().blocks_for(static_cast<uint32_t>(r->spec.prompt.size())))) return;
    forget(*r);
    r->admitted = true;
    r->usage.queue_us = static_cast<uint64_t>(now_us - r->submitted_us);
    places_ += static_cast<uint32_t>(r->samples.size());
    start(*r->samples.front());
  }
}

void Scheduler::preempt(Sequence& s) {
  for (uint32_t block : s.blocks) pool_.release(block);
  s.blocks.clear();
  s.n_cached = 0;
  s.importing = false;
  if (s.sample == 0) s.request.usage.imported_tokens = 0;  // computed after all
  s.phase = Phase::kPreempted;
  remove_from(running_, &s);
  insert_by_stamp(preempted_, &s);
  ++n_preemptions_;
}

// First what nobody uses of the prefix cache. Then takes the blocks of the youngest sequence that is not in the plan
// yet and is younger than `needy` or has a consumer that does not read.
bool Scheduler::make_room(const Sequence& needy) {
  if (prefix_.evict_one()) return true;
  for (auto at = running_.rbegin(); at != running_.rend(); ++at) {
    Sequence* victim = *at;
    if (victim == &needy || victim->blocks.empty()) continue;
    if (victim->stamp < needy.stamp && victim->request.spec.sink->has_room()) continue;
    if (std::any_of(plan_.entries.begin(), plan_.entries.end(),
                    [&](const PlanEntry& e) { return e.sequence == victim; }))
      continue;
    preempt(*victim);
    return true;
  }
  return false;
}

// Blocks for positions [n_cached, end), private to this sequence: drafts may have reached behind the prompt before its
// samples forked. False when there are not enough; those taken are kept.
bool Scheduler::reserve(Sequence& s, uint32_t end) {
  uint32_t wanted = pool_.layout().blocks_for(end);
  for (uint32_t at = s.n_cached / pool_.layout().block_tokens; at < std::min<size_t>(wanted, s.blocks.size());) {
    if (!pool_.shared(s.blocks[at])) {
      ++at;
    } else if (auto own = pool_.copy(s.blocks[at])) {
      s.blocks[at] = *own;
    } else if (!make_room(s)) {
      return false;
    }
  }
  while (s.blocks.size() < wanted) {
    if (auto block = pool_.allocate()) {
      s.blocks.push_back(*block);
    } else if (!make_room(s)) {
      return false;
    }
  }
  return true;
}

bool Scheduler::reserve_next_block(Sequence& s) {
  return reserve(s, (s.n_cached / pool_.layout().block_tokens + 1) * pool_.layout().block_tokens);
}

void Scheduler::drop_imported(Sequence& s) {
  while (s.blocks.size() > s.n_lent / pool_.layout().block_tokens) {
    pool_.release(s.blocks.back());
    s.blocks.pop_back();
  }
  s.n_cached = s.n_lent;
}

// Of the entry's rows those that have not been scored: all, unless the sequence computes some again.
void Scheduler::add_scored_rows(const Sequence& s, PlanEntry& entry) {
  uint32_t begin = std::max(s.n_scored, s.n_cached), end = std::min(s.n_cached + entry.n_rows, s.n_prompt - 1);
  for (uint32_t at = begin; at < end; ++at) plan_.logit_rows.push_back(entry.first_row + at - s.n_cached);
  entry.n_scored = end > begin ? end - begin : 0;
  plan_.scored_rows += entry.n_scored;
}

bool Scheduler::place(Sequence& s, uint32_t n_rows, std::span<const int32_t> draft) {
  auto n_draft = static_cast<uint32_t>(draft.size());
  if (!reserve(s, s.n_cached + n_rows + n_draft)) {
    uint32_t at = s.n_cached / pool_.layout().block_tokens;
    while (at < s.blocks.size() && !pool_.shared(s.blocks[at])) ++at;
    uint32_t covered = at * pool_.layout().block_tokens;
    if (covered <= s.n_cached) return false;
    n_rows = std::min(n_rows, covered - s.n_cached);
    n_draft = 0;
  }
  PlanEntry entry{.sequence = &s,
                  .first_row = static_cast<uint32_t>(plan_.tokens.size()),
                  .n_rows = n_rows + n_draft,
                  .n_draft = n_draft,
                  .wants_logits = n_rows == s.remaining(),
                  .first_logit_row = static_cast<uint32_t>(plan_.logit_rows.size())};
  if (s.scores_prompt()) add_scored_rows(s, entry);
  plan_.tokens.insert(plan_.tokens.end(), s.tokens.begin() + s.n_cached, s.tokens.begin() + s.n_cached + n_rows);
  plan_.tokens.insert(plan_.tokens.end(), draft.begin(), draft.begin() + n_draft);
  if (entry.wants_logits)
    for (uint32_t i = 0; i <= n_draft; ++i) plan_.logit_rows.push_back(entry.first_row + n_rows - 1 + i);
  plan_.entries.push_back(entry);
  plan_.spans.push_back({entry.first_row, entry.n_rows, s.n_cached, s.blocks});
  return true;
}

void Scheduler::place_decodes() {
  bool draft = running_.size() <= limits_.max_draft_sequences;
  for (size_t i = 0; i < running_.size(); ++i) {  // preemption only removes behind i
    Sequence& s = *running_[i];
    if (s.importing || s.remaining() != 1 || plan_.tokens.size() >= limits_.max_rows) continue;
    if (!s.request.spec.sink->has_room()) continue;
    std::span<const int32_t> guess;
    uint32_t room = std::min({kMaxDraftTokens, s.limit - s.n_output() - 1,
                              limits_.max_rows - static_cast<uint32_t>(plan_.tokens.size()) - 1});
    if (draft && room > 0) guess = s.drafter.propose(s.tokens, room);
    place(s, 1, guess);
  }
}

// How many of a prompt's rows this step may read. Of one that is scored: what it computes again, and as many more as
// there are rows of logits that neither this step's decodes nor the prompts behind it may need.
uint32_t Scheduler::readable(size_t index, uint32_t budget, bool with_decode) const {
  const Sequence& s = *running_[index];
  if (!s.scores_prompt()) return s.remaining();
  auto taken = static_cast<uint32_t>(plan_.logit_rows.size());
  for (size_t j = index + 1; j < running_.size(); ++j) taken += running_[j]->remaining() > 1;
  uint32_t room = logit_capacity_ - std::min(taken, logit_capacity_);
  if (with_decode) room = std::min(room, std::max(1u, budget / kScoredRowCost));
  uint32_t unscored = std::max(s.n_scored, s.n_cached);
  uint32_t wanted = s.n_prompt - unscored - (s.limit == 0);  // the last row only if a token is drawn from it
  return unscored - s.n_cached + std::min(wanted, room);
}

void Scheduler::place_prefills(uint32_t budget, bool with_decode) {
  uint32_t kept_for_short = 0;
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence& s = *running_[i];
    if (s.importing || s.remaining() <= 1) continue;
    if (s.scores_prompt() && !s.request.spec.sink->has_room()) continue;
    const uint32_t most = readable(i, budget, with_decode);
    uint32_t rows = std::min(most, budget);
    if (rows < most && kept_for_short == 0) {
      // Too long for this step. What later prompts can use whole, up to half, is theirs.
      uint32_t half = budget / 2;
      for (size_t j = i + 1; j < running_.size(); ++j)
        if (uint32_t other = running_[j]->remaining(); other > 1 && kept_for_short + other <= half)
          kept_for_short += other;
      rows = budget - kept_for_short;
    } else if (rows < most) {
      continue;  // the kept rows are for those that end in this step
    }
    if (rows == 0) continue;
    if (!place(s, rows, {})) continue;
    budget -= plan_.entries.back().n_rows;
    plan_.prefill_rows += plan_.entries.back().n_rows;
  }
}

void Scheduler::fork(Request& request) {
  request.forked = true;
  const Sequence& first = *request.samples.front();
  for (size_t i = 1; i < request.samples.size(); ++i) {
    Sequence& s = *request.samples[i];
    s.blocks = first.blocks;
    for (uint32_t block : s.blocks) pool_.share(block);
    s.n_cached = first.n_prompt;
    start(s);
  }
}

void Scheduler::retire(Sequence& s) {
  for (uint32_t block : s.blocks) pool_.release(block);
  s.blocks.clear();
  s.n_cached = 0;
  if (s.phase == Phase::kRunning) remove_from(running_, &s);
  if (s.phase == Phase::kPreempted) remove_from(preempted_, &s);
  if (s.phase != Phase::kEnded && s.request.admitted) --places_;
  s.phase = Phase::kEnded;
}

}  // namespace tie::engine
