#include "request/cloud_app/prompt_input.h"

#include <nlohmann/json.hpp>

#include "request/cloud_app/request_check.h"
#include "text/detokenizer.h"

namespace tie::request::app {
namespace {

using Json = nlohmann::ordered_json;

// Protobuf strings are valid UTF-8, so this cannot throw; replace all the same.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json content_of(const v1::Message& message) {
  if (message.content_is_null()) return nullptr;
  if (message.parts_size() == 1) return message.parts(0).text();
  if (message.parts_size() == 0) return "";
  Json parts = Json::array();
  for (const auto& part : message.parts()) parts.push_back({{"type", "text"}, {"text", part.text()}});
  return parts;
}

// For a template that knows no tools: calls and results of earlier turns as plain text.
void write_calls_out(const v1::Message& message, Json& out) {
  std::string text;
  for (const auto& part : message.parts()) text += part.text();
  if (message.role() == "tool") {
    out["role"] = "user";
    text = written_result(text);
  }
  for (const auto& call : message.tool_calls())
    text += (text.empty() ? "" : "\n") + written_call(call.name(), call.arguments_json());
  out["content"] = std::move(text);
}

// The words about tools go in front: into a system message, or, where the template takes none, into the first message.
// Behind a registered system prompt, whose tokens must stay the beginning.
Json with_instructions(const Json& messages, const std::string& words, bool as_system, bool registered) {
  Json out = messages;
  Json* first = out.empty() ? nullptr : &out.front();
  bool joins = first && (!as_system || (*first)["role"] == "system") && (*first)["content"].is_string();
  if (joins) {
    auto content = (*first)["content"].get<std::string>();
    (*first)["content"] = registered ? content + "\n\n" + words : words + "\n\n" + content;
  } else {
    out.insert(out.begin(), Json{{"role", as_system ? "system" : "user"}, {"content", words}});
  }
  return out;
}

// As OpenAI writes it, which is what chat templates read.
Json message_json(const v1::Message& message, const ServedModel& model) {
  bool as_system = message.role() == "developer" && !model.template_knows_developer;
  Json out = {{"role", as_system ? "system" : message.role()}, {"content", content_of(message)}};
  if (!model.tool_syntax.in_template && (message.role() == "tool" || message.tool_calls_size() > 0)) {
    write_calls_out(message, out);
    return out;
  }
  if (!message.name().empty()) out["name"] = message.name();
  if (!message.tool_call_id().empty()) out["tool_call_id"] = message.tool_call_id();
  if (!message.reasoning().empty()) out["reasoning_content"] = message.reasoning();
  if (message.tool_calls_size() == 0) return out;
  Json calls = Json::array();
  for (const auto& call : message.tool_calls())
    calls.push_back({{"id", call.id()},
                     {"type", "function"},
                     {"function", {{"name", call.name()}, {"arguments", call.arguments_json()}}}});
  out["tool_calls"] = std::move(calls);
  return out;
}

Checked<std::string> template_variables(const v1::InferenceRequest& request) {
  std::string out = "{";
  for (const auto& [name, value] : request.template_kwargs()) {
    if (!Json::accept(value))
      return refuse(Code::kBadRequest, "A template variable is not valid JSON.", "chat_template_kwargs");
    if (out.size() > 1) out += ',';
    out += dump(Json(name)) + ":" + value;
  }
  return out + "}";
}

Checked<PromptTokens> from_conversation(const v1::InferenceRequest& request, const ServedModel& model,
                                        bool registered) {
  text::ChatInput input;
  Json messages = Json::array();
  for (const auto& message : request.conversation().messages()) messages.push_back(message_json(message, model));
  bool explains = wants_tools(request) && !model.tool_syntax.in_template;
  input.messages_json =
      dump(explains ? with_instructions(messages, tool_instructions(request), true, registered) : messages);
  if (wants_tools(request) && !explains) input.tools_json = tools_json(request);
  if (request.template_kwargs_size() > 0) {
    TIE_TRY(input.extra_json, template_variables(request));
  }
  auto prompt = model.prompts->build(input);
  if (!prompt && explains && prompt.error().code == Code::kBadRequest) {
    input.messages_json = dump(with_instructions(messages, tool_instructions(request), false, registered));
    prompt = model.prompts->build(input);
  }
  if (!prompt) return refuse(std::move(prompt.error()), "messages");
  return PromptTokens{std::move(prompt->ids), {}};
}

Checked<PromptTokens> from_text(const v1::InferenceRequest& request, const ServedModel& model) {
  auto ids = text::tokenize_plain(*model.tokenizer, request.raw_text());
  if (!ids) return refuse(std::move(ids.error()), "prompt");
  bool begins_added = !ids->empty() && model.vocab->bos() && ids->front() == *model.vocab->bos();
  return PromptTokens{std::move(*ids), request.sampling().echo() ? request.raw_text() : std::string(), begins_added};
}

Checked<PromptTokens> from_ids(const v1::InferenceRequest& request, const ServedModel& model) {
  PromptTokens out;
  out.ids.assign(request.token_ids().ids().begin(), request.token_ids().ids().end());
  if (!request.sampling().echo()) return out;
  text::Detokenizer detokenizer(*model.vocab, {.show_control = true, .at_start = true});
  for (text::TokenId id : out.ids) {
    out.echo += detokenizer.push(id);
    TIE_CHECK_OK(check_echoed_bytes(request.sampling(), out.echo.size()));
  }
  out.echo += detokenizer.finish();
  return out;
}

}  // namespace

const char* prompt_param(const v1::InferenceRequest& request) {
  return request.has_conversation() ? "messages" : "prompt";
}

Checked<PromptTokens> prompt_tokens(const v1::InferenceRequest& request, const ServedModel& model,
                                    const prefix::SystemPrompt* system) {
  PromptTokens out;
  if (request.has_conversation()) {
    TIE_TRY(out, from_conversation(request, model, system != nullptr));
  } else if (request.has_token_ids()) {
    TIE_TRY(out, from_ids(request, model));
  } else {
    TIE_TRY(out, from_text(request, model));
  }
  if (system != nullptr && !request.has_conversation()) begin_with(*system, model, out.ids);
  // An empty text completion begins as the model begins a text.
  if (out.ids.empty()) {
    auto first = model.vocab->bos() ? model.vocab->bos() : model.vocab->eos();
    if (!first) return refuse(Code::kBadRequest, "The prompt has no tokens.", prompt_param(request));
    out.ids.push_back(*first);
    out.begins_added = true;
  }
  return out;
}

}  // namespace tie::request::app
