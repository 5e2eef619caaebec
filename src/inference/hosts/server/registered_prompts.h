// What `prompt_id` promises: that the prompt begins with a system prompt which the operator has registered. The runtime
// holds the caller to it, so that an app whose assets are of another version than the owner's cannot pass unnoticed.
// The tokens come from tie-model-owner alone. Immutable after its making; any thread.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cache/prefix/prefix_trie.h"

namespace tie::runtime_host {

class RegisteredPrompts {
 public:
  RegisteredPrompts() = default;  // none
  explicit RegisteredPrompts(std::vector<prefix::PromptEntry> prompts) : prompts_(std::move(prompts)) {}

  // An empty id promises nothing. kNotFound: no such prompt; kBadRequest: the tokens do not begin with it.
  Result<void> check(const std::string& id, std::span<const int32_t> tokens) const;

 private:
  std::vector<prefix::PromptEntry> prompts_;
};

}  // namespace tie::runtime_host
