// The runtime's tensors (src/inference/hosts/server/README.md) out of and into Triton's messages. Pure.
// The runtime is the app's neighbour, not its friend: what it answers is checked before use.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "grpc_service.pb.h"
#include "request/cloud_app/refusal.h"
#include "runtime.pb.h"
#include "sampling.pb.h"

namespace tie::request::app {

struct RuntimeCall {
  std::string model, request_id;
  std::span<const int32_t> prompt;
  const v1::SamplingParams* sampling = nullptr;
  std::string_view grammar;               // empty: unconstrained
  std::string_view prompt_id;             // a registered system prompt that the prompt begins with, or empty
  std::string_view kv_import, kv_export;  // kvxfer handles, or empty
  int64_t deadline_ms = 0;
};
void build_request(const RuntimeCall& call, inference::ModelInferRequest& out);

struct RuntimeEvent {
  int32_t sample = 0;
  std::vector<int32_t> tokens;
  v1::RuntimeLogprobs logprobs;
  v1::RuntimeLogprobs prompt_logprobs;  // of the prompt's next tokens, its second one first
  uint32_t stop_trim_bytes = 0;
  std::string finish;  // "", stop, length, grammar_end, cancelled, error
  v1::RuntimeUsage usage;
  bool has_usage = false;
  bool final = false;  // the request's last response
};
// A response that carries an error becomes a Refusal of the same name; a malformed one is kInternal.
Checked<RuntimeEvent> read_response(const inference::ModelStreamInferResponse& response);

}  // namespace tie::request::app
