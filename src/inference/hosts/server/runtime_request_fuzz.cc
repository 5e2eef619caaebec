// Any bytes as a ModelInferRequest: an error or a request within the limits, never a crash. What parses is checked and
// sampled from as the engine would.
#include <cstddef>
#include <cstdint>

#include "inference/hosts/server/limits.h"
#include "inference/hosts/server/request_parser.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tie;
  inference::ModelInferRequest request;
  if (!request.ParseFromArray(data, static_cast<int>(size))) return 0;
  request.set_model_name("m");
  auto parsed = runtime_host::parse_request(request, "m");
  runtime_host::wipe(request);
  if (!parsed) {
    tie_check(!parsed.error().message.empty(), "an error says why");
    return 0;
  }
  tie_check(parsed->spec.prompt.size() <= runtime_host::kMaxPromptTokens, "prompt within its limit");
  (void)engine::check(parsed->spec.sampling, 1000);
  return 0;
}
