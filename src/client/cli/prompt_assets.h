// The system prompts of a node's assets: `ASSETS/prompts/ID.json`. Called by `tie node prompt`. Reads and writes files;
// no threads. The text is rendered with the model's own template and tokenized once, and cut where the template's next
// control token ends, so that whatever the user writes after it cannot change these tokens.
#pragma once
#include <string>
#include <vector>

#include "cache/prefix/system_prompts.h"

namespace tie::cli {

// Errors: kModelNotFound (names those that there are), kNotFound (none), kBadRequest (id, or a template that puts no
// control token after the system message), kTooLarge.
Result<prefix::SystemPrompt> make_system_prompt(const std::string& assets, const std::string& model,
                                                const std::string& id, const std::string& text);
// Writes it; an existing prompt of the id is replaced, since prompts are updated this way. kIo.
Result<void> save_system_prompt(const std::string& assets, const prefix::SystemPrompt& prompt);
Result<std::vector<prefix::SystemPrompt>> list_system_prompts(const std::string& assets);
// kNotFound.
Result<void> remove_system_prompt(const std::string& assets, const std::string& id);

}  // namespace tie::cli
