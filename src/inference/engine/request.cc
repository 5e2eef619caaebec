#include "inference/engine/request.h"

#include <algorithm>

#include "base/clock.h"
#include "base/random.h"
#include "base/secret_bytes.h"

namespace tie::engine {
namespace {

// erase() leaves values behind the end, so the whole capacity is overwritten.
template <typename Value>
void wipe(std::vector<Value>& values) {
  size_t n = values.capacity();
  values.clear();
  secure_zero(values.data(), n * sizeof(Value));
}

}  // namespace

const char* finish_name(Finish finish) {
  switch (finish) {
    case Finish::kNone:
      return "";
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      return "length";
    case Finish::kGrammarEnd:
      return "grammar_end";
    case Finish::kCancelled:
      return "cancelled";
    case Finish::kError:
      break;
  }
  return "error";
}

Sequence::Sequence(Request& owner, uint32_t sample_index, uint64_t seed, uint32_t most, const TokenTable& table)
    : request(owner),
      sample(sample_index),
      n_prompt(static_cast<uint32_t>(owner.spec.prompt.size())),
      limit(most),
      sampler(owner.spec.sampling, table, seed, sample_index, owner.spec.prompt, most),
      table_(table),
      stops_(owner.spec.sampling.stop) {
  tokens.reserve(n_prompt + most);  // untouched memory costs nothing; growing would leave copies behind
  tokens = owner.spec.prompt;
  staged_.reserve(64);
  staged_start_.reserve(64);
  if (owner.spec.sampling.logprobs) staged_logprobs_.reserve(64);
  if (owner.spec.grammar) grammar = std::make_unique<MaskSlot>();
}

Sequence::~Sequence() {
  if (grammar) MaskWorker::wait(*grammar);
  secure_zero(tokens.data(), tokens.size() * sizeof(int32_t));
  wipe(staged_);
  wipe(staged_logprobs_);
  wipe(prompt_logprobs);
}

bool Sequence::below_min_tokens(uint32_t ahead) const {
  return n_output() + ahead < request.spec.sampling.min_tokens;
}

bool Sequence::scores_prompt() const {
  return request.spec.sampling.prompt_logprobs && sample == 0 && n_scored + 1 < n_prompt;
}

bool Sequence::is_stop_id(int32_t token) const {
  const auto& options = request.spec.sampling;
  if (!options.ignore_eos && table_.is_end(token)) return true;
  return std::find(options.stop_token_ids.begin(), options.stop_token_ids.end(), token) != options.stop_token_ids.end();
}

void Sequence::stage(int32_t token, const TokenLogprobs* logprobs) {
  staged_.push_back(token);
  staged_start_.push_back(text_bytes_);
  if (logprobs) staged_logprobs_.push_back(*logprobs);
  text_bytes_ += table_.bytes(token).size();
}

void Sequence::commit(int32_t token, const TokenLogprobs* logprobs) {
  const auto& options = request.spec.sampling;
  tokens.push_back(token);
  sampler.accept(token);
  if (is_stop_id(token)) {
    if (options.include_stop_in_output && !table_.is_end(token)) stage(token, logprobs);
    return end(Finish::kStop);
  }
  stage(token, logprobs);
  if (stops_.active() && stops_.feed(table_.bytes(token), !below_min_tokens())) {
    cut_at_match();
    finish = Finish::kStop;
    return;
  }
  if (n_output() >= limit) return end(Finish::kLength);
  if (!stops_.active()) {
    n_sendable_ = staged_.size();
    return;
  }
  uint64_t safe = stops_.safe_bytes();
  while (n_sendable_ < staged_.size()) {
    uint64_t text_end = n_sendable_ + 1 < staged_.size() ? staged_start_[n_sendable_ + 1] : text_bytes_;
    if (text_end > safe) break;
    ++n_sendable_;
  }
}

// Keeps the tokens whose text begins before the cut; of the last one the bytes behind the cut are to be trimmed by the
// receiver.
void Sequence::cut_at_match() {
  uint64_t keep = request.spec.sampling.include_stop_in_output ? stops_.match().end : stops_.match().start;
  size_t n = staged_.size();
  uint64_t text_end = text_bytes_;
  while (n > 0 && staged_start_[n - 1] >= keep) text_end = staged_start_[--n];
  n_sendable_ = n;
  trim_bytes_ = n > 0 && text_end > keep ? static_cast<uint32_t>(text_end - keep) : 0;
}

void Sequence::end(Finish reason) {
  finish = reason;
  if (reason == Finish::kCancelled || reason == Finish::kError) return;
  n_sendable_ = staged_.size();
}

Output Sequence::output() const {
  Output out;
  out.sample = sample;
  out.tokens = std::span(staged_).first(n_sendable_);
  if (!staged_logprobs_.empty()) out.logprobs = std::span(staged_logprobs_).first(n_sendable_);
  out.stop_trim_bytes = trim_bytes_;
  out.finish = finish;
  return out;
}

void Sequence::sent() {
  auto n = static_cast<ptrdiff_t>(n_sendable_);
  staged_.erase(staged_.begin(), staged_.begin() + n);
  staged_start_.erase(staged_start_.begin(), staged_start_.begin() + n);
  if (!staged_logprobs_.empty()) staged_logprobs_.erase(staged_logprobs_.begin(), staged_logprobs_.begin() + n);
  n_sendable_ = 0;
}

Request::Request(RequestSpec asked, uint64_t id, uint32_t context, const TokenTable& table) : spec(std::move(asked)) {
  handle = std::make_shared<RequestHandle>();
  handle->id = id;
  seed = spec.sampling.seed ? *spec.sampling.seed : random_u64();
  if (spec.priority == 0) spec.priority = kDefaultPriority;
  auto room = context - static_cast<uint32_t>(spec.prompt.size());
  uint32_t limit = std::min(spec.sampling.max_tokens.value_or(room), room);
  samples.reserve(spec.sampling.n);
  for (uint32_t i = 0; i < spec.sampling.n; ++i)
    samples.push_back(std::make_unique<Sequence>(*this, i, seed, limit, table));
  unfinished = spec.sampling.n;
  usage.import_refused = spec.import_refused;
  usage.prompt_tokens = static_cast<uint32_t>(spec.prompt.size());
  submitted_us = monotonic_us();
}

Request::~Request() {
  samples.clear();
  wipe(spec.prompt);
  for (auto& text : spec.sampling.stop) secure_zero(text);
  if (spec.grammar) secure_zero(*spec.grammar);
}

bool Request::grammar_ready() const {
  return std::all_of(samples.begin(), samples.end(), [](const auto& s) { return !s->grammar || s->grammar->ready(); });
}

}  // namespace tie::engine
