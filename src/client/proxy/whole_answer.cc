#include "client/proxy/answer_text.h"
#include "client/proxy/json_text.h"
#include "client/proxy/limits.h"
#include "client/proxy/openai_logprobs.h"

namespace tie::client {
namespace {

constexpr int kMaxToolCallsPerChoice = 256;

// A sample that the node never finished was ended by its limit as far as a client can tell.
std::string finish_or(const std::string& finish, const char* otherwise) {
  return finish.empty() ? otherwise : finish;
}

}  // namespace

WholeAnswer::WholeAnswer(const OpenAiRequest& request)
    : endpoint_(request.endpoint),
      wants_logprobs_(request.wants_logprobs),
      samples_(request.samples),
      choices_(request.payloads.size() * size_t(request.samples)) {}

Result<void> WholeAnswer::add(size_t payload_index, const v1::InferenceEvent& event) {
  TIE_TRY(size_t index, choice_of(event, payload_index, samples_, choices_.size()));
  bytes_ += event.ByteSizeLong();
  if (bytes_ > kMaxAnswerBytes)
    return fail(Code::kTooLarge, "the answer is larger than this proxy collects: stream it");
  Choice& choice = choices_[index];
  choice.text += event.text();
  choice.reasoning += event.reasoning();
  if (!event.finish_reason().empty()) choice.finish = event.finish_reason();
  for (const auto& delta : event.tool_calls()) {
    if (delta.index() < 0 || delta.index() >= kMaxToolCallsPerChoice)
      return fail(Code::kCorrupt, "the node numbered a tool call impossibly");
    add_tool_call(choice, delta);
  }
  if (wants_logprobs_) choice.logprobs.insert(choice.logprobs.end(), event.logprobs().begin(), event.logprobs().end());
  if (event.has_usage()) usage_.add(event.usage());
  return {};
}

void WholeAnswer::add_tool_call(Choice& choice, const v1::ToolCallDelta& delta) {
  if (size_t(delta.index()) >= choice.tool_calls.size()) choice.tool_calls.resize(size_t(delta.index()) + 1);
  v1::ToolCallDelta& call = choice.tool_calls[size_t(delta.index())];
  if (!delta.id().empty()) call.set_id(delta.id());
  if (!delta.name().empty()) call.set_name(delta.name());
  call.mutable_arguments_fragment()->append(delta.arguments_fragment());
}

void WholeAnswer::append_chat_choice(std::string& out, const Choice& choice) const {
  out += R"("message":{"role":"assistant","content":)";
  if (choice.text.empty() && !choice.tool_calls.empty()) {
    out += "null";
  } else {
    append_json_string(out, choice.text);
  }
  out += R"(,"refusal":null)";
  if (!choice.reasoning.empty()) {
    out += R"(,"reasoning_content":)";
    append_json_string(out, choice.reasoning);
  }
  for (size_t i = 0; i < choice.tool_calls.size(); ++i) {
    const v1::ToolCallDelta& call = choice.tool_calls[i];
    out += i == 0 ? R"(,"tool_calls":[)" : ",";
    out += R"({"id":)";
    append_json_string(out, call.id());
    out += R"(,"type":"function","function":{"name":)";
    append_json_string(out, call.name());
    out += R"(,"arguments":)";
    append_json_string(out, call.arguments_fragment());
    out += "}}";
    if (i + 1 == choice.tool_calls.size()) out += ']';
  }
  out += R"(},"logprobs":)";
  if (wants_logprobs_) {
    append_chat_logprobs(out, choice.logprobs);
  } else {
    out += "null";
  }
}

void WholeAnswer::append_text_choice(std::string& out, const Choice& choice) const {
  out += R"("text":)";
  append_json_string(out, choice.text);
  out += R"(,"logprobs":)";
  uint64_t offset = 0;
  if (wants_logprobs_) {
    append_text_logprobs(out, choice.logprobs, offset);
  } else {
    out += "null";
  }
}

std::string WholeAnswer::json(const AnswerHead& head) const {
  bool chat = endpoint_ == Endpoint::kChat;
  std::string out = "{";
  append_head(out, head, chat ? "chat.completion" : "text_completion");
  out += R"(,"choices":[)";
  for (size_t i = 0; i < choices_.size(); ++i) {
    out += (i == 0 ? R"({"index":)" : R"(,{"index":)") + std::to_string(i) + ",";
    if (chat) {
      append_chat_choice(out, choices_[i]);
    } else {
      append_text_choice(out, choices_[i]);
    }
    out += R"(,"finish_reason":)";
    append_json_string(out, finish_or(choices_[i].finish, "length"));
    out += '}';
  }
  out += R"(],"usage":)";
  append_usage(out, usage_);
  out += '}';
  return out;
}

}  // namespace tie::client
