// Whether a request makes sense before any work is done for it: every number in range, every list bounded, nothing
// asked for that the node does not have. Pure. Untrusted input. Each refusal names the parameter as OpenAI names it.
// Source: proto/sampling.proto, inference.proto.
#pragma once
#include "inference.pb.h"
#include "request/cloud_app/refusal.h"
#include "request/cloud_app/served_model.h"

namespace tie::request::app {

Checked<void> check_request(const v1::InferenceRequest& request, const ServedModel& model);
// `vocabulary`: ids that exist; `context_tokens`: of the model.
Checked<void> check_sampling(const v1::SamplingParams& sampling, uint32_t vocabulary, uint32_t context_tokens);

// The prompt's text, in all samples together. Of a prompt of token ids it is known only when they have become text.
Checked<void> check_echoed_bytes(const v1::SamplingParams& sampling, size_t bytes);

// The request's sampling over the model's defaults; max_tokens bounded by what the context leaves after the prompt.
// kContextExceeded, naming both numbers, when the prompt leaves no room. `prompt_param`: "messages" or "prompt".
Checked<v1::SamplingParams> settle_sampling(const v1::SamplingParams& asked, const ServedModel& model,
                                            size_t prompt_tokens, const char* prompt_param);

}  // namespace tie::request::app
