// Turns what the runtime generates into the events the user gets: whole characters only, a stop's text never shown,
// logprobs with the tokens' true bytes, one finish for each sample, usage at the end. Every event comes out padded
// (delta_padding.h). One object per request, one thread. Source: spec, "detokenizes the tokens streaming back".
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "inference.pb.h"
#include "request/cloud_app/constraints/tool_call_splitter.h"
#include "request/cloud_app/refusal.h"
#include "request/cloud_app/runtime_message.h"
#include "request/cloud_app/served_model.h"
#include "text/detokenizer.h"

namespace tie::request::app {

class Answer {
 public:
  ~Answer();
  using Emit = std::function<void(const Bytes& padded)>;

  // sampling: as settled. emit is called in here only, during the calls below.
  Answer(const ServedModel& model, const v1::SamplingParams& sampling, Emit emit);

  // Before anything else: the answer may hold calls of the request's tools, which are told apart from text.
  void split_calls(const v1::InferenceRequest& request, CallsWanted wanted);
  // The prompt back, before any token, for each sample.
  void echo(std::string_view prompt);
  // After it: the prompt's tokens with their log-probabilities, for each sample. The first one has none; the others are
  // the runtime's to say before it says anything else. `added`: the first one is not of the user's text.
  void echo_logprobs(std::vector<int32_t> prompt, bool added);
  // kInternal when the runtime speaks of samples that do not exist, goes on after a finish, or scores another prompt.
  Checked<void> add(const RuntimeEvent& event);
  // A completion of no tokens (max_tokens 0 with echo).
  void finish_empty(uint32_t prompt_tokens);
  void fail(const Refusal& refusal);
  bool complete() const { return finished_ == samples_.size(); }

 private:
  struct Sample {
    text::Detokenizer detokenizer;
    bool finished = false;
    std::optional<ToolCallSplitter> splitter;
  };
  std::string push(Sample& sample, int32_t id) const;
  void set_text(Sample& sample, std::string text, v1::InferenceEvent& out) const;
  std::string text_of(Sample& sample, const RuntimeEvent& event, std::string& matched_stop);
  void add_logprobs(const RuntimeEvent& event, v1::InferenceEvent& out) const;
  Checked<void> add_prompt_logprobs(const RuntimeEvent& event);
  void forget_scored();
  void send_to_all(const std::vector<v1::TokenLogprob>& entries);
  void send(v1::InferenceEvent& event);
  std::string matched_stop(std::string_view cut) const;

  const ServedModel& model_;
  std::vector<std::string> stops_;
  Emit emit_;
  std::vector<Sample> samples_;
  std::vector<int32_t> unscored_;  // of the prompt: what the runtime has yet to score, last token first
  size_t finished_ = 0;
  bool first_sent_ = false;
};

}  // namespace tie::request::app
