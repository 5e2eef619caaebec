#include "request/cloud_app/request_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "request/cloud_app/limits.h"

namespace tie::request::app {
namespace {

constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};

// NaN is in no range.
Checked<void> in_range(const char* name, float value, float low, float high) {
  if (value >= low && value <= high) return {};
  return refuse(Code::kBadRequest, fmt::format("{} must be between {} and {}.", name, low, high), name);
}

Checked<void> int_in_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return refuse(Code::kBadRequest, fmt::format("{} must be between {} and {}.", name, low, high), name);
}

Checked<void> above_zero(const char* name, float value, float high) {
  if (value > 0 && value <= high) return {};
  return refuse(Code::kBadRequest, fmt::format("{} must be above 0 and at most {}.", name, high), name);
}

Checked<void> known_token(const char* name, int32_t id, uint32_t vocabulary) {
  if (id >= 0 && static_cast<uint32_t>(id) < vocabulary) return {};
  return refuse(Code::kBadRequest,
                fmt::format("{} names token {}, but the vocabulary has {} tokens.", name, id, vocabulary), name);
}

Checked<void> check_lists(const v1::SamplingParams& s, uint32_t vocabulary) {
  if (s.stop_size() > kMaxStopStrings)
    return refuse(Code::kBadRequest, fmt::format("stop may have at most {} entries.", kMaxStopStrings), "stop");
  for (const std::string& stop : s.stop())
    if (stop.empty() || stop.size() > kMaxStopBytes)
      return refuse(Code::kBadRequest, fmt::format("Each entry of stop must have 1 to {} bytes.", kMaxStopBytes),
                    "stop");
  if (s.stop_token_ids_size() > kMaxStopTokenIds)
    return refuse(Code::kBadRequest, fmt::format("stop_token_ids may have at most {} entries.", kMaxStopTokenIds),
                  "stop_token_ids");
  for (int32_t id : s.stop_token_ids()) TIE_CHECK_OK(known_token("stop_token_ids", id, vocabulary));
  if (s.logit_bias_size() > kMaxLogitBiases)
    return refuse(Code::kBadRequest, fmt::format("logit_bias may name at most {} tokens.", kMaxLogitBiases),
                  "logit_bias");
  for (const auto& [id, bias] : s.logit_bias()) {
    TIE_CHECK_OK(known_token("logit_bias", id, vocabulary));
    TIE_CHECK_OK(in_range("logit_bias", bias, -100, 100));
  }
  return {};
}

Checked<void> check_message(const v1::Message& message) {
  if (std::find(std::begin(kRoles), std::end(kRoles), message.role()) == std::end(kRoles))
    return refuse(Code::kBadRequest, "role must be one of system, developer, user, assistant, tool.", "messages");
  if (message.parts_size() > kMaxPartsPerMessage || message.tool_calls_size() > kMaxToolCallsPerMessage)
    return refuse(Code::kBadRequest, "A message has too many parts.", "messages");
  if (message.name().size() > kMaxIdBytes || message.tool_call_id().size() > kMaxIdBytes)
    return refuse(Code::kBadRequest, fmt::format("name and tool_call_id have at most {} bytes.", kMaxIdBytes),
                  "messages");
  for (const auto& part : message.parts()) {
    if (part.kind_case() == v1::ContentPart::kImage)
      return refuse(Code::kUnsupportedFeature, "This model reads text only; it takes no images.", "messages");
    if (part.kind_case() != v1::ContentPart::kText)
      return refuse(Code::kBadRequest, "A content part is neither text nor an image.", "messages");
  }
  return {};
}

Checked<void> check_prompt(const v1::InferenceRequest& request, const ServedModel& model) {
  switch (request.prompt_case()) {
    case v1::InferenceRequest::kConversation: {
      const auto& messages = request.conversation().messages();
      if (messages.empty()) return refuse(Code::kBadRequest, "messages must not be empty.", "messages");
      if (messages.size() > kMaxMessages)
        return refuse(Code::kBadRequest, fmt::format("At most {} messages.", kMaxMessages), "messages");
      for (const auto& message : messages) TIE_CHECK_OK(check_message(message));
      if (request.sampling().echo()) return refuse(Code::kBadRequest, "echo is for text completions only.", "echo");
      return {};
    }
    case v1::InferenceRequest::kRawText:
      return {};
    case v1::InferenceRequest::kTokenIds:
      for (int32_t id : request.token_ids().ids()) TIE_CHECK_OK(known_token("prompt", id, model.vocab->size()));
      return {};
    default:
      return refuse(Code::kBadRequest, "The request has no prompt.", "messages");
  }
}

Checked<void> check_tools(const v1::InferenceRequest& request) {
  if (request.tools_size() > kMaxTools)
    return refuse(Code::kBadRequest, fmt::format("At most {} tools.", kMaxTools), "tools");
  if (wants_tools(request) && !request.has_conversation())
    return refuse(Code::kUnsupportedFeature, "Tools need a conversation, not a text.", "tools");
  std::set<std::string_view> names;
  for (const auto& tool : request.tools()) {
    if (tool.name().empty() || tool.name().size() > kMaxToolNameBytes ||
        tool.description().size() > kMaxToolDescriptionBytes)
      return refuse(Code::kBadRequest, "A tool's name is missing or too long, or its description is too long.",
                    "tools");
    if (!names.insert(tool.name()).second) return refuse(Code::kBadRequest, "Two tools have the same name.", "tools");
  }
  bool forced =
      request.tool_choice().kind() == v1::ToolChoice::REQUIRED || request.tool_choice().kind() == v1::ToolChoice::NAMED;
  if (forced && request.tools_size() == 0) return refuse(Code::kBadRequest, "tool_choice needs tools.", "tool_choice");
  return {};
}

// Later features have their place in the messages already; until they are there a request for them must not pass
// unnoticed.
Checked<void> check_features(const v1::InferenceRequest& request) {
  TIE_CHECK_OK(check_tools(request));
  // They would list the operator's tokens.
  if (request.sampling().echo() && request.sampling().logprobs() && !request.prompt_id().empty())
    return refuse(Code::kUnsupportedFeature,
                  "logprobs of the prompt (echo with logprobs) are not available together with a registered prompt.",
                  "echo");
  if (request.sampling().echo()) TIE_CHECK_OK(check_echoed_bytes(request.sampling(), request.raw_text().size()));
  for (const std::string* key : {&request.turn_key_read(), &request.turn_key_write()})
    if (!key->empty() && key->size() != 32) return refuse(Code::kBadRequest, "A turn key is 32 bytes.");
  if (request.template_kwargs_size() > kMaxTemplateVariables)
    return refuse(Code::kBadRequest, fmt::format("At most {} template variables.", kMaxTemplateVariables),
                  "chat_template_kwargs");
  return {};
}

}  // namespace

Checked<void> check_sampling(const v1::SamplingParams& s, uint32_t vocabulary, uint32_t context_tokens) {
  if (s.has_temperature()) TIE_CHECK_OK(in_range("temperature", s.temperature(), 0, 2));
  if (s.has_top_p()) TIE_CHECK_OK(above_zero("top_p", s.top_p(), 1));
  if (s.has_min_p()) TIE_CHECK_OK(in_range("min_p", s.min_p(), 0, 1));
  if (s.has_top_k()) TIE_CHECK_OK(int_in_range("top_k", s.top_k(), 0, INT32_MAX));
  if (s.has_repetition_penalty())
    TIE_CHECK_OK(above_zero("repetition_penalty", s.repetition_penalty(), kMaxRepetitionPenalty));
  if (s.has_presence_penalty()) TIE_CHECK_OK(in_range("presence_penalty", s.presence_penalty(), -2, 2));
  if (s.has_frequency_penalty()) TIE_CHECK_OK(in_range("frequency_penalty", s.frequency_penalty(), -2, 2));
  TIE_CHECK_OK(int_in_range("n", s.n(), 0, kMaxSamples));
  // A completion that could not fit into the context whatever the prompt is a mistake; one that merely may not is
  // bounded later.
  if (s.has_max_tokens()) TIE_CHECK_OK(int_in_range("max_tokens", s.max_tokens(), s.echo() ? 0 : 1, context_tokens));
  TIE_CHECK_OK(int_in_range("min_tokens", s.min_tokens(), 0,
                            s.has_max_tokens() ? s.max_tokens() : static_cast<int64_t>(context_tokens)));
  TIE_CHECK_OK(int_in_range("top_logprobs", s.top_logprobs(), 0, kMaxTopLogprobs));
  if (s.top_logprobs() > 0 && !s.logprobs())
    return refuse(Code::kBadRequest, "top_logprobs needs logprobs.", "top_logprobs");
  return check_lists(s, vocabulary);
}

Checked<void> check_echoed_bytes(const v1::SamplingParams& s, size_t bytes) {
  if (bytes * static_cast<size_t>(std::max(s.n(), 1)) <= kMaxEchoedBytes) return {};
  return refuse(Code::kBadRequest,
                fmt::format("echo for each of n samples would be more than {} bytes.", kMaxEchoedBytes), "n");
}

Checked<void> check_request(const v1::InferenceRequest& request, const ServedModel& model) {
  TIE_CHECK_OK(check_prompt(request, model));
  TIE_CHECK_OK(check_sampling(request.sampling(), model.vocab->size(), model.context_tokens));
  return check_features(request);
}

namespace {

// Every sample brings the prompt's tokens again, as OpenAI has it, so a request of a few bytes asks for much.
Checked<void> check_echoed_scores(const v1::SamplingParams& s, size_t prompt_tokens) {
  const uint64_t scores = uint64_t{prompt_tokens} * static_cast<uint64_t>(std::max(s.n(), 1)) *
                          (1 + static_cast<uint64_t>(s.top_logprobs()));
  if (scores <= kMaxEchoedScores) return {};
  return refuse(
      Code::kBadRequest,
      fmt::format("echo with logprobs would answer with {} log-probabilities ({} prompt tokens, for each of n "
                  "samples, with top_logprobs); at most {}.",
                  scores, prompt_tokens, kMaxEchoedScores),
      s.n() > 1 ? "n" : "top_logprobs");
}

}  // namespace

Checked<v1::SamplingParams> settle_sampling(const v1::SamplingParams& asked, const ServedModel& model,
                                            size_t prompt_tokens, const char* prompt_param) {
  if (prompt_tokens >= model.context_tokens)
    return refuse(Code::kContextExceeded,
                  fmt::format("This model's context is {} tokens, but the prompt has {} tokens.", model.context_tokens,
                              prompt_tokens),
                  prompt_param);
  v1::SamplingParams out = model.defaults;
  out.MergeFrom(asked);
  out.set_echo(out.echo() && out.logprobs());  // for the runtime it means: log-probabilities of the prompt as well
  if (out.echo()) TIE_CHECK_OK(check_echoed_scores(out, prompt_tokens));
  auto room = static_cast<int32_t>(model.context_tokens - prompt_tokens);
  out.set_max_tokens(out.has_max_tokens() ? std::min(out.max_tokens(), room) : room);
  out.set_min_tokens(std::min(out.min_tokens(), out.max_tokens()));
  return out;
}

}  // namespace tie::request::app
