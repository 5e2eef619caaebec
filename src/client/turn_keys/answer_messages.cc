#include "client/turn_keys/answer_messages.h"

#include <algorithm>

namespace tie::client {
namespace {

constexpr size_t kMaxBytes = 64u << 20;
constexpr int kMaxCalls = 256;

bool add_call(const v1::ToolCallDelta& delta, v1::Message& message) {
  if (delta.index() < 0 || delta.index() >= kMaxCalls) return false;
  while (message.tool_calls_size() <= delta.index()) message.add_tool_calls();
  v1::ToolCall& call = *message.mutable_tool_calls(delta.index());
  if (!delta.id().empty()) call.set_id(delta.id());
  if (!delta.name().empty()) call.set_name(delta.name());
  call.mutable_arguments_json()->append(delta.arguments_fragment());
  return true;
}

}  // namespace

AnswerMessages::AnswerMessages(int samples) : messages_(static_cast<size_t>(std::max(samples, 1))) {
  for (v1::Message& message : messages_) {
    message.set_role("assistant");
    message.add_parts();
  }
}

void AnswerMessages::add(const v1::InferenceEvent& event) {
  if (messages_.empty()) return;
  bytes_ += event.ByteSizeLong();
  bool fits =
      bytes_ <= kMaxBytes && event.sample_index() >= 0 && static_cast<size_t>(event.sample_index()) < messages_.size();
  if (fits) {
    v1::Message& message = messages_[static_cast<size_t>(event.sample_index())];
    message.mutable_parts(0)->mutable_text()->append(event.text());
    for (const v1::ToolCallDelta& delta : event.tool_calls()) fits = fits && add_call(delta, message);
  }
  if (!fits) messages_.clear();
}

}  // namespace tie::client
