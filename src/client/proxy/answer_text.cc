#include "client/proxy/answer_text.h"

#include "base/clock.h"
#include "base/random.h"
#include "client/proxy/json_text.h"

namespace tie::client {

AnswerHead new_answer_head(Endpoint endpoint, const std::string& model, const std::string& fingerprint) {
  return {(endpoint == Endpoint::kChat ? "chatcmpl-" : "cmpl-") + random_hex(14), wall_clock_ms() / 1000, model,
          fingerprint};
}

void UsageSum::add(const v1::Usage& usage) {
  prompt_tokens += usage.prompt_tokens();
  completion_tokens += usage.completion_tokens();
  cached_tokens += usage.cached_tokens();
  reasoning_tokens += usage.reasoning_tokens();
}

void append_head(std::string& out, const AnswerHead& head, const char* object) {
  out += R"("id":)";
  append_json_string(out, head.id);
  out += R"(,"object":")";
  out += object;
  out += R"(","created":)" + std::to_string(head.created_unix_s) + R"(,"model":)";
  append_json_string(out, head.model);
  out += R"(,"system_fingerprint":)";
  append_json_string(out, head.fingerprint);
}

void append_usage(std::string& out, const UsageSum& usage) {
  out += R"({"prompt_tokens":)" + std::to_string(usage.prompt_tokens);
  out += R"(,"completion_tokens":)" + std::to_string(usage.completion_tokens);
  out += R"(,"total_tokens":)" + std::to_string(usage.prompt_tokens + usage.completion_tokens);
  out +=
      R"(,"prompt_tokens_details":{"cached_tokens":)" + std::to_string(usage.cached_tokens) + R"(,"audio_tokens":0})";
  out += R"(,"completion_tokens_details":{"reasoning_tokens":)" + std::to_string(usage.reasoning_tokens);
  out += R"(,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}})";
}

Result<size_t> choice_of(const v1::InferenceEvent& event, size_t payload_index, int samples, size_t choices) {
  size_t choice = payload_index * size_t(samples) + size_t(event.sample_index());
  if (event.sample_index() < 0 || event.sample_index() >= samples || choice >= choices) {
    return fail(Code::kCorrupt, "the node answered for a sample that was not asked for");
  }
  if (event.finish_reason() == "cancelled") return fail(Code::kCancelled, error_info(Code::kCancelled).sentence);
  if (event.finish_reason() == "error") return fail(Code::kInternal, error_info(Code::kInternal).sentence);
  return choice;
}

}  // namespace tie::client
