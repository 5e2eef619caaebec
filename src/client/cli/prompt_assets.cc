#include "client/cli/prompt_assets.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "os/memfd.h"
#include "supervision/launcher/node_config.h"
#include "supervision/model_owner/model_identity.h"
#include "text/prompt.h"

namespace tie::cli {
namespace {

// Two conversations that begin with the same system message and differ at once afterwards.
constexpr const char* kFirstUser = "a";
constexpr const char* kOtherUser = "Zwei";

Result<std::vector<int32_t>> render(const text::PromptBuilder& builder, const std::string& system, const char* user) {
  text::ChatInput input;
  input.messages_json =
      nlohmann::json{{{"role", "system"}, {"content", system}}, {{"role", "user"}, {"content", user}}}.dump();
  TIE_TRY(text::Prompt prompt, builder.build(input));
  return std::vector<int32_t>(prompt.ids.begin(), prompt.ids.end());
}

Result<void> require_model(const std::string& assets, const std::string& model) {
  launcher::NodeConfig config;
  config.assets = assets;
  TIE_TRY(const std::vector<std::string> there, launcher::served_models(config));  // none: says how to add one
  if (std::find(there.begin(), there.end(), model) != there.end()) return {};
  return fail(Code::kModelNotFound,
              fmt::format("there is no model '{}' in {}; those there are: {}", model, assets, fmt::join(there, ", ")));
}

std::string file_of(const std::string& assets, const std::string& id) {
  return assets + "/prompts/" + id + ".json";
}

}  // namespace

Result<prefix::SystemPrompt> make_system_prompt(const std::string& assets, const std::string& model,
                                                const std::string& id, const std::string& text) {
  if (!owner::valid_model_name(model))
    return fail(Code::kBadRequest, "a model's name has letters, digits, '.', '_' and '-'");
  TIE_CHECK_OK(require_model(assets, model));
  std::string folder = assets + "/models/" + model + "/";
  TIE_TRY(auto image, os::Mapping::file_read_only(folder + owner::kTokenizerFile));
  auto bytes = image.bytes();
  TIE_TRY(auto vocab, text::Vocab::open({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
  TIE_TRY(auto tokenizer, text::Tokenizer::create(vocab));
  auto source = os::read_file(folder + owner::kTemplateFile, size_t{1} << 20);
  if (!source && source.error().code != Code::kNotFound) return std::unexpected(std::move(source.error()));
  TIE_TRY(auto builder, text::PromptBuilder::create(tokenizer, source ? as_text(*source) : std::string_view{}));
  TIE_TRY(auto tokens, render(builder, text, kFirstUser));
  TIE_TRY(auto other, render(builder, text, kOtherUser));
  tokens.erase(std::mismatch(tokens.begin(), tokens.end(), other.begin(), other.end()).first, tokens.end());
  while (!tokens.empty() && !vocab.is_control(tokens.back())) tokens.pop_back();
  if (tokens.empty())
    return fail(Code::kBadRequest,
                "the model's template puts no control token after a system message, so the prompt has no safe end");
  prefix::SystemPrompt prompt{id, model, text, std::move(tokens)};
  return prefix::parse_system_prompt(
      prefix::to_json(prompt));  // the rules of the file are the rules of what is written
}

Result<void> save_system_prompt(const std::string& assets, const prefix::SystemPrompt& prompt) {
  std::error_code error;
  std::filesystem::create_directories(assets + "/prompts", error);
  if (error) return fail(Code::kIo, assets + "/prompts: " + error.message());
  return os::write_file_atomic(file_of(assets, prompt.id), as_bytes(prefix::to_json(prompt)), 0644);
}

Result<std::vector<prefix::SystemPrompt>> list_system_prompts(const std::string& assets) {
  std::vector<prefix::SystemPrompt> out;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(assets + "/prompts", error)) {
    if (file.path().extension() != ".json") continue;
    TIE_TRY(Bytes bytes, os::read_file(file.path().string(), prefix::kMaxPromptFileBytes));
    auto prompt = prefix::parse_system_prompt(as_text(bytes));
    if (!prompt) return std::unexpected(std::move(prompt.error()).context(file.path().string()));
    out.push_back(std::move(*prompt));
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  return out;
}

Result<void> remove_system_prompt(const std::string& assets, const std::string& id) {
  if (!owner::valid_model_name(id))
    return fail(Code::kBadRequest, "a prompt's id has letters, digits, '.', '_' and '-'");
  std::error_code error;
  if (!std::filesystem::remove(file_of(assets, id), error))
    return fail(error ? Code::kIo : Code::kNotFound, "no prompt " + id + " in " + assets + "/prompts");
  return {};
}

}  // namespace tie::cli
