// System prompts as assets: `ASSETS/prompts/ID.json` = {"id", "model", "text", "token_ids"}. Written by `tie node
// prompt add`, read by tie-model-owner. Files are the operator's but still checked: a limit on every size, unknown keys
// refused. No threads.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "cache/prefix/prefix_trie.h"

namespace tie::prefix {

struct SystemPrompt {
  std::string id;  // also the file's name: letters, digits, '.', '_', '-'
  std::string model;
  std::string text;
  std::vector<int32_t> tokens;  // rendered and tokenized once, ending on a special token
};

inline constexpr size_t kMaxPromptFileBytes = size_t{8} << 20;

// 1 to 64 of letters, digits, '.', '_', '-', not a dot first: safe as a file's name.
bool valid_prompt_id(std::string_view id);
Result<SystemPrompt> parse_system_prompt(std::string_view json);
std::string to_json(const SystemPrompt& prompt);
// Those of one model, by id. A missing folder is an empty list. kCorrupt names the file.
// `accept` (may be empty) sees every file's name and bytes before anything is read from them.
using AcceptPromptFile = std::function<Result<void>(const std::string& name, ByteView bytes)>;
Result<std::vector<PromptEntry>> read_prompts(const std::string& assets, const std::string& model,
                                              const AcceptPromptFile& accept = {});

}  // namespace tie::prefix
