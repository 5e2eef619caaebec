// From a ModelInferRequest to what the engine takes. The one place where tensors are read; README.md in this folder
// documents them. Pure functions over hostile input: every size, type, shape and count is checked before use, and every
// error names the tensor or parameter.
#pragma once
#include <string>
#include <string_view>

#include "base/result.h"
#include "grpc_service.pb.h"
#include "inference/engine/request.h"
#include "sampling.pb.h"

namespace tie::runtime_host {

// Which output tensors a client wants; all when it names none.
enum OutputBit : uint32_t {
  kSampleIndex = 1,
  kTokenIds = 2,
  kStopTrimBytes = 4,
  kLogprobs = 8,
  kFinish = 16,
  kUsage = 32,
  kPromptLogprobs = 64,
  kAllOutputs = 127
};

struct ParsedRequest {
  engine::RequestSpec spec;          // without a sink
  std::string prompt_id;             // empty: none
  std::string kv_import, kv_export;  // handles, or empty
  uint32_t outputs = kAllOutputs;
};

// `model`: the one this runtime serves. Errors: kModelNotFound, kBadRequest, kUnsupportedFeature (images),
// kTooLarge. The token ids are read out of `request` once; wipe() the request afterwards.
Result<ParsedRequest> parse_request(const inference::ModelInferRequest& request, std::string_view model);

// The checked form of the `sampling` tensor; ranges are checked by engine::check().
Result<engine::SamplingOptions> parse_sampling(const v1::SamplingParams& params);

// Overwrites the user's data in a request that has been parsed.
void wipe(inference::ModelInferRequest& request);

}  // namespace tie::runtime_host
