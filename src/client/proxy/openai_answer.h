// Writes answers in OpenAI's form from the node's events: one object for answers as a whole, one for streamed ones, for
// both endpoints. One thread, one object per answer. Holds the answer's text: dies with the request. Source: OpenAI's
// API description, schemas CreateChatCompletionResponse, CreateChatCompletionStreamResponse, CreateCompletionResponse.
#pragma once
#include <string>
#include <vector>

#include "base/result.h"
#include "client/proxy/openai_request.h"

namespace tie::client {

// What every object of one answer repeats.
struct AnswerHead {
  std::string id;  // chatcmpl-… or cmpl-…
  int64_t created_unix_s = 0;
  std::string model;
  std::string fingerprint;  // release, short
};
AnswerHead new_answer_head(Endpoint endpoint, const std::string& model, const std::string& fingerprint);

struct UsageSum {
  uint64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0, reasoning_tokens = 0;
  void add(const v1::Usage& usage);
};

// Collects events until the authenticated end. choice = first choice of the payload + sample index.
class WholeAnswer {
 public:
  explicit WholeAnswer(const OpenAiRequest& request);
  // Errors: kCorrupt for a sample that was not asked for, kTooLarge over kMaxAnswerBytes, kCancelled or kInternal for
  // such a finish.
  Result<void> add(size_t payload_index, const v1::InferenceEvent& event);
  std::string json(const AnswerHead& head) const;

 private:
  struct Choice {
    std::string text, reasoning, finish;
    std::vector<v1::ToolCallDelta> tool_calls;
    std::vector<v1::TokenLogprob> logprobs;
  };
  void add_tool_call(Choice& choice, const v1::ToolCallDelta& delta);
  void append_chat_choice(std::string& out, const Choice& choice) const;
  void append_text_choice(std::string& out, const Choice& choice) const;
  Endpoint endpoint_;
  bool wants_logprobs_;
  int samples_;
  size_t bytes_ = 0;
  std::vector<Choice> choices_;
  UsageSum usage_;
};

// Turns each event into server-sent events.
class StreamedAnswer {
 public:
  StreamedAnswer(const OpenAiRequest& request, const AnswerHead& head);
  // Appends zero or more `data: …` lines. Errors as WholeAnswer::add.
  Result<void> add(size_t payload_index, const v1::InferenceEvent& event, std::string& out);
  // The usage chunk, when asked for, and [DONE].
  void end(std::string& out) const;
  // What a stream that was cut ends with, instead of end().
  static void append_error(const ApiError& error, std::string& out);

 private:
  void begin_chunk(std::string& out, size_t choice) const;
  void end_chunk(std::string& out, const std::string& finish) const;
  void append_role(std::string& out, size_t choice);
  void append_chat_delta(std::string& out, size_t choice, const v1::InferenceEvent& event);
  void append_text(std::string& out, size_t choice, const v1::InferenceEvent& event);
  Endpoint endpoint_;
  bool include_usage_, wants_logprobs_;
  int samples_;
  std::string prefix_;           // of every chunk, up to the choice's index
  std::vector<bool> role_sent_;  // by choice
  std::vector<uint64_t> text_offset_;
  UsageSum usage_;
};

}  // namespace tie::client
