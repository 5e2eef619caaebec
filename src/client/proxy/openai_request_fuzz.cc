// Any bytes as a request body: a translation or an error in OpenAI's form, never a crash; what translates serializes.
#include "client/proxy/openai_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view body(reinterpret_cast<const char*>(data), size);
  for (auto endpoint : {tie::client::Endpoint::kChat, tie::client::Endpoint::kCompletions}) {
    auto read = tie::client::read_openai_request(endpoint, body);
    if (read) {
      for (const auto& payload : read->payloads)
        tie::tie_check(!payload.SerializeAsString().empty(), "a translated request has content");
    } else {
      tie::tie_check(!tie::client::error_json(read.error()).empty(), "an error has a form");
    }
  }
  return 0;
}
