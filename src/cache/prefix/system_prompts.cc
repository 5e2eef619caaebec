#include "cache/prefix/system_prompts.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "os/fd.h"

namespace tie::prefix {
namespace {

using Json = nlohmann::json;
constexpr size_t kMaxIdBytes = 64;

Result<std::string> text_of(const Json& object, const char* key) {
  auto found = object.find(key);
  if (found == object.end() || !found->is_string())
    return fail(Code::kCorrupt, std::string("\"") + key + "\" is missing or not a text");
  return found->get<std::string>();
}

Result<std::vector<int32_t>> tokens_of(const Json& object) {
  auto found = object.find("token_ids");
  if (found == object.end() || !found->is_array())
    return fail(Code::kCorrupt, "\"token_ids\" is missing or not a list");
  if (found->size() > kMaxPromptTokens) return fail(Code::kTooLarge, "a prompt has too many tokens");
  std::vector<int32_t> out;
  for (const Json& item : *found) {
    if (!item.is_number_integer() || item.get<int64_t>() < 0 || item.get<int64_t>() > INT32_MAX)
      return fail(Code::kCorrupt, "\"token_ids\" holds something that is no token id");
    out.push_back(item.get<int32_t>());
  }
  return out;
}

}  // namespace

bool valid_prompt_id(std::string_view id) {
  return !id.empty() && id.size() <= kMaxIdBytes && id[0] != '.' &&
         std::all_of(id.begin(), id.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-'; });
}

Result<SystemPrompt> parse_system_prompt(std::string_view json) {
  if (json.size() > kMaxPromptFileBytes) return fail(Code::kTooLarge, "a prompt file is too large");
  Json object = Json::parse(json, nullptr, false);
  if (!object.is_object()) return fail(Code::kCorrupt, "a prompt file is not a JSON object");
  for (const auto& [key, value] : object.items())
    if (key != "id" && key != "model" && key != "text" && key != "token_ids")
      return fail(Code::kCorrupt, "unknown key in a prompt file");
  SystemPrompt out;
  TIE_TRY(out.id, text_of(object, "id"));
  TIE_TRY(out.model, text_of(object, "model"));
  TIE_TRY(out.text, text_of(object, "text"));
  TIE_TRY(out.tokens, tokens_of(object));
  if (out.tokens.empty()) return fail(Code::kCorrupt, "a prompt has no tokens");
  if (!valid_prompt_id(out.id))
    return fail(Code::kCorrupt, "a prompt's id has characters other than letters, digits, '.', '_' and '-'");
  return out;
}

std::string to_json(const SystemPrompt& prompt) {
  return Json{{"id", prompt.id}, {"model", prompt.model}, {"text", prompt.text}, {"token_ids", prompt.tokens}}.dump(1) +
         "\n";
}

Result<std::vector<PromptEntry>> read_prompts(const std::string& assets, const std::string& model,
                                              const AcceptPromptFile& accept) {
  std::string folder = assets + "/prompts";
  std::error_code error;
  std::filesystem::directory_iterator files(folder, error);
  std::vector<PromptEntry> out;
  if (error) return out;
  for (const auto& file : files) {
    if (file.path().extension() != ".json") continue;
    auto read = [&]() -> Result<SystemPrompt> {
      TIE_TRY(Bytes bytes, os::read_file(file.path().string(), kMaxPromptFileBytes));
      if (accept) TIE_CHECK_OK(accept(file.path().filename().string(), bytes));
      return parse_system_prompt(as_text(bytes));
    };
    auto prompt = read();
    if (!prompt) return std::unexpected(std::move(prompt.error()).context(file.path().string()));
    if (prompt->id + ".json" != file.path().filename().string())
      return fail(Code::kCorrupt, file.path().string() + " is named otherwise than its id");
    if (prompt->model != model) continue;
    if (out.size() >= kMaxPrompts)
      return fail(Code::kTooLarge, "more than " + std::to_string(kMaxPrompts) + " prompts for one model");
    out.push_back({prompt->id, std::move(prompt->tokens), {}});
  }
  std::sort(out.begin(), out.end(), [](const PromptEntry& a, const PromptEntry& b) { return a.id < b.id; });
  return out;
}

}  // namespace tie::prefix
