#include "client/cli/model_sources.h"

#include <fmt/format.h>

#include <filesystem>

#include "inference/bones/weights_image.h"
#include "model_files/json_document.h"
#include "model_import/import.h"
#include "os/fd.h"
#include "os/memfd.h"
#include "text/model_assets.h"
#include "text/vocab_image.h"

namespace tie::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxTokenizerJsonBytes = 64 << 20;
constexpr size_t kMaxSmallFileBytes = 4 << 20;

// Text of a file beside the weights, empty when there is none.
Result<std::string> text_beside(const fs::path& folder, const char* name, size_t max_bytes) {
  auto bytes = os::read_file(folder / name, max_bytes);
  if (!bytes && bytes.error().code == Code::kNotFound) return std::string();
  if (!bytes) return std::unexpected(std::move(bytes.error()));
  return std::string(as_text(*bytes));
}

Result<nlohmann::json> object_beside(const fs::path& folder, const char* name) {
  TIE_TRY(const std::string text, text_beside(folder, name, kMaxSmallFileBytes));
  if (text.empty()) return nlohmann::json::object();
  return model_files::parse_json_object(text, name, {kMaxSmallFileBytes, 64});
}

// chat_template.jinja, else chat_template of the tokenizer's config: one text, or several by name.
Result<std::string> template_of(const fs::path& folder, const nlohmann::json& tokenizer_config) {
  TIE_TRY(const std::string own_file, text_beside(folder, "chat_template.jinja", kMaxSmallFileBytes));
  if (!own_file.empty()) return own_file;
  TIE_TRY(const nlohmann::json old_file, object_beside(folder, "chat_template.json"));
  const nlohmann::json& holder = old_file.contains("chat_template") ? old_file : tokenizer_config;
  const auto found = holder.find("chat_template");
  if (found == holder.end() || found->is_null()) return std::string();
  if (found->is_string()) return found->get<std::string>();
  if (found->is_array())
    for (const auto& one : *found)
      if (one.is_object() && one.value("name", nlohmann::json()) == "default" && one.contains("template") &&
          one["template"].is_string())
        return one["template"].get<std::string>();
  return fail(Code::kCorrupt, "tokenizer_config.json: chat_template is neither a text nor a list with a default");
}

// What the publisher recommends, where it samples at all.
Result<std::map<std::string, double>> sampling_of(const fs::path& folder) {
  std::map<std::string, double> out;
  TIE_TRY(const nlohmann::json config, object_beside(folder, "generation_config.json"));
  if (config.value("do_sample", nlohmann::json(false)) != true) return out;
  for (const char* key : {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"})
    if (config.contains(key) && config[key].is_number()) out[key] = config[key].get<double>();
  return out;
}

// Everything that would fail later in the owner fails here, before anything is installed.
Result<void> check_weights(const std::string& path) {
  TIE_TRY(const os::Mapping file, os::Mapping::file_read_only(path));
  const ByteView bytes(reinterpret_cast<const uint8_t*>(file.bytes().data()), file.size());
  TIE_CHECK_OK(bones::PackPlan::from_gguf(bytes));
  return {};
}

Result<void> check_vocabulary(ByteView image, uint32_t n_embeddings) {
  TIE_TRY(const text::Vocab vocab, text::Vocab::open(image));
  if (vocab.size() <= n_embeddings) return {};
  return fail(Code::kCorrupt,
              fmt::format("tokenizer.json has {} tokens, the model's embedding {} rows", vocab.size(), n_embeddings));
}

Result<ModelParts> take_folder(const fs::path& folder, const std::string& weights_path, bool keep_precision) {
  ModelParts out;
  TIE_TRY(const std::string tokenizer, text_beside(folder, "tokenizer.json", kMaxTokenizerJsonBytes));
  if (tokenizer.empty()) return fail(Code::kNotFound, folder.string() + " holds no tokenizer.json");
  TIE_TRY(const std::string config_text, text_beside(folder, "tokenizer_config.json", kMaxSmallFileBytes));
  TIE_TRY(const nlohmann::json config, object_beside(folder, "tokenizer_config.json"));
  TIE_TRY(out.tokenizer_image, text::compile_vocab_image_from_json(tokenizer, config_text));
  TIE_TRY(out.chat_template, template_of(folder, config));
  TIE_TRY(out.sampling, sampling_of(folder));
  using model_import::WeightFormat;
  TIE_TRY(
      const model_import::Imported imported,
      model_import::import_folder(folder, weights_path, keep_precision ? WeightFormat::kKeep : WeightFormat::kQ8_0));
  TIE_CHECK_OK(check_vocabulary(out.tokenizer_image, imported.n_vocab));
  out.architecture = imported.architecture;
  out.context_tokens = imported.context_tokens;
  out.title = fs::canonical(folder).filename();
  return out;
}

// A link costs no space; across file systems, or where links are forbidden, it is a copy.
Result<void> place_weights(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::create_hard_link(fs::canonical(from, error), to, error);
  if (!error) return {};
  error.clear();
  fs::copy_file(from, to, error);
  if (error) return fail(Code::kIo, "copying " + from.string() + ": " + error.message());
  return {};
}

}  // namespace

Result<ModelParts> take_model(const std::string& source, const std::string& weights_path, bool keep_precision) {
  ModelParts out;
  if (model_import::is_hf_folder(source)) {
    TIE_TRY(out, take_folder(source, weights_path, keep_precision));
  } else {
    TIE_TRY(text::ModelAssets assets, text::compile_model_assets(source));
    out = {std::move(assets.tokenizer_image),
           std::move(assets.chat_template),
           assets.architecture,
           assets.name,
           assets.context_length,
           {}};
    TIE_CHECK_OK(place_weights(source, weights_path));
  }
  TIE_CHECK_OK(check_weights(weights_path));
  return out;
}

}  // namespace tie::cli
