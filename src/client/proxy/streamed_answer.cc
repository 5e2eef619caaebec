#include "client/proxy/answer_text.h"
#include "client/proxy/json_text.h"
#include "client/proxy/openai_logprobs.h"

namespace tie::client {

StreamedAnswer::StreamedAnswer(const OpenAiRequest& request, const AnswerHead& head)
    : endpoint_(request.endpoint),
      include_usage_(request.include_usage),
      wants_logprobs_(request.wants_logprobs),
      samples_(request.samples),
      role_sent_(request.payloads.size() * size_t(request.samples)),
      text_offset_(role_sent_.size()) {
  prefix_ = "data: {";
  append_head(prefix_, head, endpoint_ == Endpoint::kChat ? "chat.completion.chunk" : "text_completion");
  prefix_ += R"(,"choices":[)";
}

void StreamedAnswer::begin_chunk(std::string& out, size_t choice) const {
  out += prefix_;
  out += R"({"index":)";
  out += std::to_string(choice);
}

void StreamedAnswer::end_chunk(std::string& out, const std::string& finish) const {
  out += R"(,"finish_reason":)";
  if (finish.empty()) {
    out += "null";
  } else {
    append_json_string(out, finish);
  }
  out += include_usage_ ? "}],\"usage\":null}\n\n" : "}]}\n\n";
}

void StreamedAnswer::append_role(std::string& out, size_t choice) {
  role_sent_[choice] = true;
  begin_chunk(out, choice);
  out += R"(,"delta":{"role":"assistant","content":"","refusal":null})";
  end_chunk(out, {});
}

void StreamedAnswer::append_chat_delta(std::string& out, size_t choice, const v1::InferenceEvent& event) {
  begin_chunk(out, choice);
  out += R"(,"delta":{)";
  const char* comma = "";
  if (!event.text().empty()) {
    out += R"("content":)";
    append_json_string(out, event.text());
    comma = ",";
  }
  if (!event.reasoning().empty()) {
    out += comma;
    out += R"("reasoning_content":)";
    append_json_string(out, event.reasoning());
    comma = ",";
  }
  for (int i = 0; i < event.tool_calls_size(); ++i) {
    const v1::ToolCallDelta& call = event.tool_calls(i);
    out += i == 0 ? comma : "";
    out += i == 0 ? R"("tool_calls":[{"index":)" : R"(,{"index":)";
    out += std::to_string(call.index());
    if (!call.id().empty()) {
      out += R"(,"id":)";
      append_json_string(out, call.id());
      out += R"(,"type":"function")";
    }
    out += R"(,"function":{)";
    if (!call.name().empty()) {
      out += R"("name":)";
      append_json_string(out, call.name());
      out += ',';
    }
    out += R"("arguments":)";
    append_json_string(out, call.arguments_fragment());
    out += i + 1 == event.tool_calls_size() ? "}}]" : "}}";
  }
  out += '}';
  if (wants_logprobs_ && event.logprobs_size() > 0) {
    out += R"(,"logprobs":)";
    append_chat_logprobs(out, event.logprobs());
  }
  end_chunk(out, event.finish_reason());
}

void StreamedAnswer::append_text(std::string& out, size_t choice, const v1::InferenceEvent& event) {
  begin_chunk(out, choice);
  out += R"(,"text":)";
  append_json_string(out, event.text());
  out += R"(,"logprobs":)";
  if (wants_logprobs_ && event.logprobs_size() > 0) {
    append_text_logprobs(out, event.logprobs(), text_offset_[choice]);
  } else {
    out += "null";
  }
  end_chunk(out, event.finish_reason());
}

Result<void> StreamedAnswer::add(size_t payload_index, const v1::InferenceEvent& event, std::string& out) {
  TIE_TRY(size_t choice, choice_of(event, payload_index, samples_, role_sent_.size()));
  if (event.has_usage()) usage_.add(event.usage());
  bool chat = endpoint_ == Endpoint::kChat;
  if (chat && !role_sent_[choice]) append_role(out, choice);
  bool says_something = !event.text().empty() || !event.reasoning().empty() || event.tool_calls_size() > 0 ||
                        !event.finish_reason().empty() || (wants_logprobs_ && event.logprobs_size() > 0);
  if (!says_something) return {};
  if (chat) {
    append_chat_delta(out, choice, event);
  } else {
    append_text(out, choice, event);
  }
  return {};
}

void StreamedAnswer::end(std::string& out) const {
  if (include_usage_) {
    out += prefix_;
    out += R"(],"usage":)";
    append_usage(out, usage_);
    out += "}\n\n";
  }
  out += "data: [DONE]\n\n";
}

void StreamedAnswer::append_error(const ApiError& error, std::string& out) {
  out += "data: ";
  out += error_json(error);
  out += "\n\n";
}

}  // namespace tie::client
