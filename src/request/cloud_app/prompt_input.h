// From the request's prompt, in whichever of its three forms, to token ids. Untrusted input; work is bounded by the
// template's budget.
#pragma once
#include "inference.pb.h"
#include "request/cloud_app/named_prompt.h"
#include "request/cloud_app/refusal.h"
#include "request/cloud_app/served_model.h"

namespace tie::request::app {

struct PromptTokens {
  std::vector<text::TokenId> ids;
  std::string echo;           // the prompt as text, when the request wants it back
  bool begins_added = false;  // the first id is none of the text's: the model's beginning of every text
};

// The request has passed check_request. `system`: the registered prompt that it names and that add_system_message() has
// put in front of a conversation, or null.
Checked<PromptTokens> prompt_tokens(const v1::InferenceRequest& request, const ServedModel& model,
                                    const prefix::SystemPrompt* system = nullptr);
const char* prompt_param(const v1::InferenceRequest& request);  // "messages" or "prompt"

}  // namespace tie::request::app
