#include "request/cloud_app/named_prompt.h"

#include <algorithm>

#include "os/fd.h"

namespace tie::request::app {
namespace {

constexpr const char* kParam = "prompt_id";

std::unexpected<Refusal> unknown(const std::string& model) {
  return refuse(Code::kNotFound,
                "This node has no registered system prompt of that id for the model " + model +
                    ". Its operator adds one with `tie node prompt add` and then `tie node reload`.",
                kParam);
}

std::string text_of(const v1::Message& message) {
  std::string out;
  for (const auto& part : message.parts()) out += part.text();
  return out;
}

}  // namespace

Checked<prefix::SystemPrompt> named_prompt(const std::string& assets, const std::string& id, const std::string& model) {
  if (!prefix::valid_prompt_id(id)) return unknown(model);
  auto bytes = os::read_file(assets + "/prompts/" + id + ".json", prefix::kMaxPromptFileBytes);
  if (!bytes && bytes.error().code == Code::kNotFound) return unknown(model);
  if (!bytes) return refuse(Code::kInternal, "A registered system prompt of this node cannot be read.", kParam);
  auto prompt = prefix::parse_system_prompt(as_text(*bytes));
  if (!prompt) return refuse(Code::kInternal, "A registered system prompt of this node is damaged.", kParam);
  if (prompt->id != id || prompt->model != model) return unknown(model);
  return std::move(*prompt);
}

Checked<void> add_system_message(const prefix::SystemPrompt& prompt, v1::InferenceRequest& request) {
  if (!request.has_conversation()) return {};
  auto& messages = *request.mutable_conversation()->mutable_messages();
  if (!messages.empty() && (messages[0].role() == "system" || messages[0].role() == "developer")) {
    if (text_of(messages[0]) == prompt.text) return {};
    return refuse(Code::kBadRequest,
                  "The request names a registered system prompt and begins with a system message of its own; send one "
                  "of the two.",
                  kParam);
  }
  v1::Message& system = *messages.Add();
  system.set_role("system");
  system.add_parts()->set_text(prompt.text);
  for (int i = messages.size() - 1; i > 0; --i) messages.SwapElements(i, i - 1);
  return {};
}

void begin_with(const prefix::SystemPrompt& prompt, const ServedModel& model, std::vector<text::TokenId>& ids) {
  bool twice =
      model.vocab->bos() && !ids.empty() && ids.front() == *model.vocab->bos() && prompt.tokens.front() == ids.front();
  if (twice) ids.erase(ids.begin());
  ids.insert(ids.begin(), prompt.tokens.begin(), prompt.tokens.end());
}

bool is_beginning_of(const prefix::SystemPrompt& prompt, std::span<const text::TokenId> ids) {
  return ids.size() >= prompt.tokens.size() && std::ranges::equal(prompt.tokens, ids.first(prompt.tokens.size()));
}

Refusal not_served(const prefix::SystemPrompt& prompt) {
  return unknown(prompt.model).error();
}

}  // namespace tie::request::app
