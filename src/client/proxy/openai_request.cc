#include "client/proxy/openai_request.h"

#include <fmt/format.h>

#include "client/proxy/json_body.h"
#include "client/proxy/limits.h"
#include "client/proxy/openai_parts.h"
#include "client/proxy/schema_text.h"

namespace tie::client {
namespace {

constexpr int32_t kDefaultCompletionTokens = 16;  // OpenAI's default of the legacy endpoint

void read_common(FieldReader& body, OpenAiRequest& out) {
  auto model = body.text("model");
  if (!model || model->empty()) {
    body.fail_with({Code::kBadRequest,
                    "Missing required parameter: 'model'. GET /v1/models lists what this node serves.", "model",
                    "missing_required_parameter", 0});
  }
  out.model = model.value_or("");
  out.stream = body.boolean("stream").value_or(false);
  out.cache = body.boolean("tie_cache").value_or(true);
  if (const auto* options = body.object("stream_options")) {
    if (!out.stream) body.fail_on("stream_options", "'stream_options' is only allowed when 'stream' is true.");
    FieldReader inner(*options, "stream_options");
    out.include_usage = inner.boolean("include_usage").value_or(false);
    inner.ignore({"include_obfuscation", "continuous_usage_stats"});
    inner.refuse_unknown();
    body.adopt(inner);
  }
  body.ignore({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
               "prompt_cache_retention", "prompt_cache_options"});
}

void read_template_arguments(FieldReader& body, v1::InferenceRequest& payload) {
  if (const auto* arguments = body.object("chat_template_kwargs")) {
    for (const auto& [name, value] : arguments->items()) (*payload.mutable_template_kwargs())[name] = value.dump();
  }
  if (auto effort = body.text("reasoning_effort"))
    (*payload.mutable_template_kwargs())["reasoning_effort"] = nlohmann::json(*effort).dump();
}

void read_chat_limits(FieldReader& body, v1::SamplingParams& sampling) {
  auto newer = body.integer("max_completion_tokens", 1, INT32_MAX);
  auto older = body.integer("max_tokens", 1, INT32_MAX);
  if (newer && older && *newer != *older)
    body.fail_on("max_tokens", "Give 'max_completion_tokens' or 'max_tokens', not both.");
  if (newer || older) sampling.set_max_tokens(int32_t(newer ? *newer : *older));
  bool logprobs = body.boolean("logprobs").value_or(false);
  sampling.set_logprobs(logprobs);
  if (auto top = body.integer("top_logprobs", 0, kMaxTopLogprobs)) {
    if (!logprobs) body.fail_on("top_logprobs", "'top_logprobs' needs 'logprobs': true.");
    sampling.set_top_logprobs(int32_t(*top));
  }
}

void refuse_chat_features(FieldReader& body) {
  body.refuse("functions", "use tools");
  body.refuse("function_call", "use tool_choice");
  body.refuse("audio", "this node has no audio");
  body.refuse("modalities", "this node answers in text", nlohmann::json::array({"text"}));
  body.refuse("web_search_options", "this node does not reach the web");
  body.refuse("moderation", "this node does not moderate");
  body.ignore({"prediction", "verbosity"});
}

void read_chat(FieldReader& body, OpenAiRequest& out) {
  v1::InferenceRequest& payload = out.payloads.emplace_back();
  payload.set_model(out.model);
  read_messages(body, *payload.mutable_conversation());
  read_sampling(body, *payload.mutable_sampling());
  read_chat_limits(body, *payload.mutable_sampling());
  read_tools(body, payload);
  read_response_format(body, payload, true);
  read_template_arguments(body, payload);
  refuse_chat_features(body);
}

bool read_token_ids(const nlohmann::json& ids, v1::TokenPrompt& out) {
  if (ids.size() > kMaxPromptTokens) return false;
  for (const auto& id : ids) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX) return false;
    out.add_ids(id.get<int32_t>());
  }
  return true;
}

// A string, an array of strings, an array of token ids, or an array of arrays of token ids.
void read_prompts(FieldReader& body, const v1::InferenceRequest& base, OpenAiRequest& out) {
  const auto* prompt = body.any("prompt");
  if (!prompt)
    return body.fail_with(
        {Code::kBadRequest, "Missing required parameter: 'prompt'.", "prompt", "missing_required_parameter", 0});
  auto wrong = [&] {
    body.fail_on("prompt",
                 "'prompt' must be a string, an array of strings, an array of token ids, or an array of such arrays.");
  };
  auto add = [&]() -> v1::InferenceRequest& { return out.payloads.emplace_back(base); };
  if (prompt->is_string()) return add().set_raw_text(prompt->get<std::string>());
  if (!prompt->is_array() || prompt->empty()) return wrong();
  if (prompt->front().is_number()) {
    if (!read_token_ids(*prompt, *add().mutable_token_ids())) wrong();
    return;
  }
  if (prompt->size() > kMaxPrompts)
    return body.fail_on("prompt",
                        fmt::format("'prompt' has {} entries; at most {} are taken.", prompt->size(), kMaxPrompts));
  for (const auto& one : *prompt) {
    if (one.is_string()) {
      add().set_raw_text(one.get<std::string>());
    } else if (!one.is_array() || one.empty() || !read_token_ids(one, *add().mutable_token_ids())) {
      return wrong();
    }
  }
}

void read_completion(FieldReader& body, OpenAiRequest& out) {
  v1::InferenceRequest base;
  base.set_model(out.model);
  v1::SamplingParams& sampling = *base.mutable_sampling();
  read_sampling(body, sampling);
  bool echo = body.boolean("echo").value_or(false);
  sampling.set_echo(echo);
  sampling.set_max_tokens(
      int32_t(body.integer("max_tokens", echo ? 0 : 1, INT32_MAX).value_or(kDefaultCompletionTokens)));
  if (auto logprobs = body.integer("logprobs", 0, kMaxTopLogprobs)) {
    sampling.set_logprobs(true);
    sampling.set_top_logprobs(int32_t(*logprobs));
  }
  const auto* best_of = body.any("best_of");
  if (best_of && !(best_of->is_number_integer() && *best_of == std::max(1, sampling.n()))) {
    body.fail_with({Code::kUnsupportedFeature, "'best_of' is not supported: ask for 'n' samples and choose among them.",
                    "best_of", "unsupported_parameter", 0});
  }
  body.refuse("suffix", "this node does not insert text", "");
  read_response_format(body, base, false);
  read_prompts(body, base, out);
}

}  // namespace

std::expected<OpenAiRequest, ApiError> read_openai_request(Endpoint endpoint, std::string_view text) {
  auto json = parse_json_body(text);
  if (!json) return std::unexpected(api_error(json.error()));
  FieldReader body(*json, "");
  OpenAiRequest out;
  out.endpoint = endpoint;
  read_common(body, out);
  if (endpoint == Endpoint::kChat) {
    read_chat(body, out);
  } else {
    read_completion(body, out);
  }
  body.refuse_unknown();
  if (body.failed()) return std::unexpected(*body.error());
  v1::InferenceRequest& first = out.payloads.front();
  keep_schema_texts(text, first);
  for (v1::InferenceRequest& payload : out.payloads)
    if (&payload != &first && first.has_response_format()) *payload.mutable_response_format() = first.response_format();
  const v1::SamplingParams& sampling = out.payloads.front().sampling();
  out.samples = std::max(1, sampling.n());
  out.wants_logprobs = sampling.logprobs();
  return out;
}

}  // namespace tie::client
