#include "request/cloud_app/served_model.h"

#include <filesystem>
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "request/cloud_app/limits.h"

namespace tie::request::app {
namespace {

namespace fs = std::filesystem;

ByteView as_view(const os::Mapping& mapping) {
  return {reinterpret_cast<const uint8_t*>(mapping.bytes().data()), mapping.size()};
}

void read_defaults(const toml::table& table, v1::SamplingParams& out) {
  if (auto v = table["temperature"].value<double>()) out.set_temperature(static_cast<float>(*v));
  if (auto v = table["top_p"].value<double>()) out.set_top_p(static_cast<float>(*v));
  if (auto v = table["min_p"].value<double>()) out.set_min_p(static_cast<float>(*v));
  if (auto v = table["top_k"].value<int64_t>()) out.set_top_k(static_cast<int32_t>(*v));
  if (auto v = table["repetition_penalty"].value<double>()) out.set_repetition_penalty(static_cast<float>(*v));
}

Result<void> read_facts(const std::string& path, ServedModel& model) {
  TIE_TRY(Bytes text, os::read_file(path, kMaxModelTomlBytes));
  auto parsed = toml::parse(as_text(text));
  if (!parsed) return fail(Code::kCorrupt, path + ": " + std::string(parsed.error().description()));
  const toml::table& table = parsed.table();
  model.context_tokens = table["context_tokens"].value_or(uint32_t{0});
  model.model_id = table["model_id"].value_or(std::string());
  if (model.context_tokens == 0) return fail(Code::kCorrupt, path + " states no context_tokens");
  if (const toml::table* sampling = table["sampling"].as_table()) read_defaults(*sampling, model.defaults);
  return {};
}

}  // namespace

Result<std::unique_ptr<ServedModel>> load_model(const std::string& folder, const std::string& name) {
  auto model = std::make_unique<ServedModel>();
  model->name = name;
  TIE_CHECK_OK(read_facts(folder + "/model.toml", *model));
  TIE_TRY(model->tokenizer_image, os::Mapping::file_read_only(folder + "/tokenizer.img"));
  TIE_TRY(auto vocab, text::Vocab::open(as_view(model->tokenizer_image)));
  model->vocab = std::make_unique<text::Vocab>(std::move(vocab));
  TIE_TRY(auto tokenizer, text::Tokenizer::create(*model->vocab));
  model->tokenizer = std::make_unique<text::Tokenizer>(std::move(tokenizer));
  std::string chat_template;
  std::string template_path = folder + "/template.jinja";
  std::error_code ignored;
  if (fs::exists(template_path, ignored)) {
    TIE_TRY(Bytes text, os::read_file(template_path, kMaxTemplateBytes));
    chat_template = to_string(text);
  }
  model->template_knows_developer = chat_template.find("developer") != std::string::npos;
  model->tool_syntax = detect_tool_syntax(chat_template, *model->vocab);
  TIE_TRY(auto prompts, text::PromptBuilder::create(*model->tokenizer, chat_template));
  model->prompts = std::make_unique<text::PromptBuilder>(std::move(prompts));
  return model;
}

Result<ServedModels> ServedModels::load(const std::string& assets) {
  ServedModels out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(assets + "/models", error)) {
    if (!fs::exists(entry.path() / "tokenizer.img", error)) continue;
    if (out.models_.size() >= kMaxModels) return fail(Code::kTooLarge, assets + " holds more than 64 models");
    std::string name = entry.path().filename();
    TIE_TRY(auto model, load_model(entry.path(), name));
    out.models_.emplace(std::move(name), std::move(model));
  }
  if (out.models_.empty()) return fail(Code::kNotFound, assets + "/models holds no model");
  return out;
}

const ServedModel* ServedModels::find(const std::string& name) const {
  auto found = models_.find(name);
  return found == models_.end() ? nullptr : found->second.get();
}

}  // namespace tie::request::app
