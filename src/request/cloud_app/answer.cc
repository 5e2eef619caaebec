#include "request/cloud_app/answer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/secret_bytes.h"
#include "request/cloud_app/delta_padding/delta_padding.h"
#include "request/cloud_app/limits.h"

namespace tie::request::app {
namespace {

constexpr float kNoLogprob = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfiniteLogprob = -9999;  // what OpenAI's clients expect in the place of minus infinity

float finite(float logprob) {
  return std::isfinite(logprob) ? logprob : kInfiniteLogprob;
}

// The longest prefix of at most `max` bytes that ends between characters.
size_t whole_characters(std::string_view text, size_t max) {
  if (text.size() <= max) return text.size();
  size_t end = max;
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xc0) == 0x80) --end;
  return end == 0 ? max : end;
}

// An unfinished character at the end becomes U+FFFD, as text must be valid.
void mend_end(std::string& text) {
  size_t back = 0;
  while (back < 3 && back < text.size() && (static_cast<uint8_t>(text[text.size() - 1 - back]) & 0xc0) == 0x80) ++back;
  if (back >= text.size()) return;
  auto lead = static_cast<uint8_t>(text[text.size() - 1 - back]);
  size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
  if (length <= back + 1) return;
  text.resize(text.size() - 1 - back);
  text += "\xEF\xBF\xBD";
}

template <typename Entry>
void set_bytes(Entry& out, const text::Vocab& vocab) {
  out.set_token_bytes(to_string(token_bytes_for_logprobs(vocab, out.token_id())));
}

v1::TokenLogprob with_bytes(const v1::RuntimeLogprobs::Entry& entry, const text::Vocab& vocab) {
  v1::TokenLogprob out;
  out.set_token_id(entry.token_id());
  out.set_logprob(finite(entry.logprob()));
  set_bytes(out, vocab);
  for (const auto& top : entry.top()) {
    auto& alternative = *out.add_top();
    alternative.set_token_id(top.token_id());
    alternative.set_logprob(finite(top.logprob()));
    set_bytes(alternative, vocab);
  }
  return out;
}

}  // namespace

Answer::Answer(const ServedModel& model, const v1::SamplingParams& sampling, Emit emit)
    : model_(model), stops_(sampling.stop().begin(), sampling.stop().end()), emit_(std::move(emit)) {
  for (int i = 0; i < std::max(sampling.n(), 1); ++i) samples_.push_back({text::Detokenizer(*model.vocab)});
}

void Answer::split_calls(const v1::InferenceRequest& request, CallsWanted wanted) {
  std::vector<std::string> names;
  for (const auto& tool : request.tools()) names.push_back(tool.name());
  TextParameters texts;
  if (model_.tool_syntax.style == ToolStyle::kXml) texts = text_parameters(request);
  for (Sample& sample : samples_) {
    sample.splitter.emplace(model_.tool_syntax, names, wanted);
    sample.splitter->set_text_parameters(texts);
  }
}

void Answer::send(v1::InferenceEvent& event) {
  if (!std::exchange(first_sent_, true)) event.set_served_model_id(model_.model_id);
  v1::ResponseMessage message;
  message.mutable_event()->Swap(&event);
  emit_(pad_message(message.SerializeAsString()));
}

void Answer::echo(std::string_view prompt) {
  for (size_t i = 0; i < samples_.size(); ++i) {
    for (std::string_view left = prompt; !left.empty();) {
      size_t size = whole_characters(left, kMaxTextPerEventBytes);
      v1::InferenceEvent event;
      event.set_sample_index(static_cast<int32_t>(i));
      event.set_text(std::string(left.substr(0, size)));
      send(event);
      left.remove_prefix(size);
    }
  }
}

Answer::~Answer() {
  secure_zero(unscored_.data(), unscored_.size() * sizeof(int32_t));
}

// A vector keeps what is popped.
void Answer::forget_scored() {
  secure_zero(&unscored_.back(), sizeof(int32_t));
  unscored_.pop_back();
}

void Answer::send_to_all(const std::vector<v1::TokenLogprob>& entries) {
  for (size_t i = 0; i < samples_.size(); ++i) {
    v1::InferenceEvent event;
    event.set_sample_index(static_cast<int32_t>(i));
    event.mutable_logprobs()->Assign(entries.begin(), entries.end());
    send(event);
  }
}

void Answer::echo_logprobs(std::vector<int32_t> prompt, bool added) {
  if (prompt.empty()) return;
  std::reverse(prompt.begin(), prompt.end());
  unscored_ = std::move(prompt);
  v1::TokenLogprob first;
  first.set_token_id(unscored_.back());
  first.set_logprob(kNoLogprob);
  if (!added) set_bytes(first, *model_.vocab);
  send_to_all({first});
  forget_scored();
}

Checked<void> Answer::add_prompt_logprobs(const RuntimeEvent& event) {
  std::vector<v1::TokenLogprob> entries;
  for (const auto& entry : event.prompt_logprobs.entries()) {
    if (event.sample != 0 || unscored_.empty() || unscored_.back() != entry.token_id())
      return refuse(Code::kInternal, "The runtime scored tokens that are not the prompt's.");
    forget_scored();
    entries.push_back(with_bytes(entry, *model_.vocab));
    if (entries.size() == kMaxPromptLogprobsPerEvent) send_to_all(std::exchange(entries, {}));
  }
  if (!entries.empty()) send_to_all(entries);
  if (!unscored_.empty() && (!event.tokens.empty() || !event.finish.empty()))
    return refuse(Code::kInternal, "The runtime answered before it had scored the prompt.");
  return {};
}

Checked<void> Answer::add(const RuntimeEvent& event) {
  bool known = event.sample >= 0 && static_cast<size_t>(event.sample) < samples_.size();
  if (!known) return refuse(Code::kInternal, "The runtime spoke of a sample that was not asked for.");
  Sample& sample = samples_[static_cast<size_t>(event.sample)];
  bool failed = event.finish == "error" || event.finish == "cancelled";
  if (!failed) TIE_CHECK_OK(add_prompt_logprobs(event));
  v1::InferenceEvent out;
  bool worth_sending = false;
  if (!event.tokens.empty() || !event.finish.empty()) {
    if (sample.finished) return refuse(Code::kInternal, "The runtime went on after a sample's end.");
    if (failed)
      return refuse(event.finish == "error" ? Code::kInternal : Code::kCancelled, "The runtime ended the request.");
    out.set_sample_index(event.sample);
    std::string stop;
    sample.finished = !event.finish.empty();
    set_text(sample, text_of(sample, event, stop), out);
    add_logprobs(event, out);
    if (sample.finished) {
      ++finished_;
      bool called = sample.splitter && sample.splitter->calls() > 0;
      out.set_finish_reason(event.finish == "length" ? "length" : called ? "tool_calls" : "stop");
      out.set_matched_stop(stop);
    }
    worth_sending = !out.text().empty() || out.tool_calls_size() > 0 || out.logprobs_size() > 0 || sample.finished;
  }
  if (event.has_usage) {
    out.mutable_usage()->set_prompt_tokens(event.usage.prompt_tokens());
    out.mutable_usage()->set_completion_tokens(event.usage.completion_tokens());
    out.mutable_usage()->set_cached_tokens(event.usage.prefix_tokens() + event.usage.imported_tokens());
    worth_sending = true;
  }
  if (worth_sending) send(out);
  return {};
}

// A control token has no text, but where it is a call's marker the splitter has to see it.
std::string Answer::push(Sample& sample, int32_t id) const {
  std::string text = sample.detokenizer.push(id);
  if (!sample.splitter) return text;
  text += marker_text(model_.tool_syntax, id);
  return text;
}

void Answer::set_text(Sample& sample, std::string text, v1::InferenceEvent& out) const {
  if (!sample.splitter) return out.set_text(std::move(text));
  SplitOutput parts;
  sample.splitter->push(text, parts);
  if (sample.finished) sample.splitter->finish(parts);
  out.set_text(std::move(parts.text));
  for (CallFragment& part : parts.calls) {
    auto& delta = *out.add_tool_calls();
    delta.set_index(part.index);
    delta.set_id(std::move(part.id));
    delta.set_name(std::move(part.name));
    delta.set_arguments_fragment(std::move(part.arguments));
  }
}

// Bytes of a stop match, counted from the end of everything generated, are cut before the text is let go.
std::string Answer::text_of(Sample& sample, const RuntimeEvent& event, std::string& matched) {
  std::string text;
  for (int32_t id : event.tokens) text += push(sample, id);
  if (event.stop_trim_bytes == 0) {
    if (!event.finish.empty()) text += sample.detokenizer.finish();
    return text;
  }
  text += sample.detokenizer.pending();
  (void)sample.detokenizer.finish();
  size_t kept = text.size() - std::min<size_t>(text.size(), event.stop_trim_bytes);
  matched = matched_stop(std::string_view(text).substr(kept));
  text.resize(kept);
  mend_end(text);
  return text;
}

std::string Answer::matched_stop(std::string_view cut) const {
  std::string best;
  for (const std::string& stop : stops_)
    if (cut.starts_with(stop) && stop.size() > best.size()) best = stop;
  return best;
}

// Tokens that lie wholly in what a stop cut off are not part of the answer.
void Answer::add_logprobs(const RuntimeEvent& event, v1::InferenceEvent& out) const {
  int kept = event.logprobs.entries_size();
  size_t cut = event.stop_trim_bytes;
  while (kept > 0 && cut > 0) {
    size_t bytes = model_.vocab->token_bytes(event.logprobs.entries(kept - 1).token_id()).size();
    if (bytes > cut) break;
    cut -= bytes;
    --kept;
  }
  for (int i = 0; i < kept; ++i) *out.add_logprobs() = with_bytes(event.logprobs.entries(i), *model_.vocab);
}

void Answer::finish_empty(uint32_t prompt_tokens) {
  for (size_t i = 0; i < samples_.size(); ++i) {
    v1::InferenceEvent event;
    event.set_sample_index(static_cast<int32_t>(i));
    event.set_finish_reason("length");
    if (i + 1 == samples_.size()) event.mutable_usage()->set_prompt_tokens(prompt_tokens);
    send(event);
  }
  finished_ = samples_.size();
}

void Answer::fail(const Refusal& refusal) {
  v1::InferenceEvent event;
  event.mutable_error()->set_code(static_cast<v1::ErrorCode>(refusal.code));
  event.mutable_error()->set_message(refusal.message);
  event.mutable_error()->set_param(refusal.param);
  send(event);
}

}  // namespace tie::request::app
