#include "inference/hosts/server/registered_prompts.h"

#include <algorithm>

#include "cache/prefix/owner_link.h"

namespace tie::runtime_host {
namespace {

constexpr int64_t kCallMs = 10'000;

}  // namespace

Result<RegisteredPrompts> RegisteredPrompts::from_owner(const std::string& owner_socket, const std::string& model) {
  TIE_TRY(auto link, prefix::OwnerLink::connect(owner_socket, model, 0, Deadline::in_ms(kCallMs)));
  auto prompts = link.prompts(Deadline::in_ms(kCallMs));
  if (!prompts && prompts.error().code == Code::kFailedPrecondition) return RegisteredPrompts();
  if (!prompts) return std::unexpected(std::move(prompts.error()));
  return RegisteredPrompts(std::move(*prompts));
}

Result<void> RegisteredPrompts::check(const std::string& id, std::span<const int32_t> tokens) const {
  if (id.empty()) return {};
  auto found = std::ranges::find(prompts_, id, &prefix::PromptEntry::id);
  if (found == prompts_.end())
    return fail(Code::kNotFound, "prompt_id names no registered system prompt of this model");
  if (tokens.size() < found->tokens.size() || !std::ranges::equal(found->tokens, tokens.first(found->tokens.size())))
    return fail(Code::kBadRequest,
                "the prompt does not begin with the tokens of the system prompt that prompt_id names");
  return {};
}

}  // namespace tie::runtime_host
