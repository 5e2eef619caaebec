// Translates the bodies of POST /v1/chat/completions and /v1/completions into the user's payload. What happens to each
// parameter is written down in docs/openai-parameters.md; a parameter that is in neither is refused. Untrusted input,
// pure functions, never throws.
#pragma once
#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "client/proxy/openai_error.h"
#include "inference.pb.h"

namespace tie::client {

enum class Endpoint { kChat, kCompletions };

struct OpenAiRequest {
  Endpoint endpoint = Endpoint::kChat;
  std::string model;
  std::vector<v1::InferenceRequest> payloads;  // one; legacy completions: one for each prompt
  int samples = 1;                             // n, of each payload
  bool stream = false;
  bool include_usage = false;
  bool wants_logprobs = false;
  bool cache = true;  // false: nothing of this request is to be found again
};

std::expected<OpenAiRequest, ApiError> read_openai_request(Endpoint endpoint, std::string_view body);

}  // namespace tie::client
