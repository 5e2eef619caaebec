#include "inference/hosts/server/registered_prompts.h"

#include <algorithm>

namespace tie::runtime_host {

Result<void> RegisteredPrompts::check(const std::string& id, std::span<const int32_t> tokens) const {
  if (id.empty()) return {};
  auto found = std::ranges::find(prompts_, id, &prefix::PromptEntry::id);
  if (found == prompts_.end())
    return fail(Code::kNotFound, "prompt_id names no registered system prompt of this model");
  if (tokens.size() < found->tokens.size() || !std::ranges::equal(found->tokens, tokens.first(found->tokens.size())))
    return fail(Code::kBadRequest,
                "prompt_id names a system prompt of other tokens than those that the prompt begins with");
  return {};
}

}  // namespace tie::runtime_host
