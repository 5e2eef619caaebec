// A registered system prompt that a request names by id: read from the node's assets (ASSETS/prompts/ID.json) when it
// is named, and put where the model reads it. Its token ids are those that the node's prefix cache was warmed with, so
// the runtime computes only what follows. A user's tokens come after them and never change them. One thread.
#pragma once
#include <span>
#include <string>

#include "cache/prefix/system_prompts.h"
#include "inference.pb.h"
#include "request/cloud_app/refusal.h"
#include "request/cloud_app/served_model.h"

namespace tie::request::app {

// kNotFound: this node has no such prompt for that model (the id is user input: it reaches the file system only when it
// is a valid id). Cost: one file.
Checked<prefix::SystemPrompt> named_prompt(const std::string& assets, const std::string& id, const std::string& model);

// For a conversation: the prompt's text becomes the first system message, which the model's template renders into the
// prompt's tokens. A first system message that is that text already stays; any other is kBadRequest. Other forms of
// prompt are left: begin_with() puts the tokens there.
Checked<void> add_system_message(const prefix::SystemPrompt& prompt, v1::InferenceRequest& request);

// For a text or token ids: the prompt's tokens in front, with one beginning-of-sequence token in all.
void begin_with(const prefix::SystemPrompt& prompt, const ServedModel& model, std::vector<text::TokenId>& ids);

// Whether the runtime may be told that `ids` begin with the prompt, which it then checks against what its cache was
// warmed with. Words about tools move the end of the system message, so a conversation with tools may begin otherwise.
bool is_beginning_of(const prefix::SystemPrompt& prompt, std::span<const text::TokenId> ids);
// What to say when the runtime knows the id not, or with other tokens: the node is between two versions of its prompts.
Refusal not_served(const prefix::SystemPrompt& prompt);

}  // namespace tie::request::app
