#include "client/cli/model_assets.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>

#include "base/random.h"
#include "os/fd.h"
#include "supervision/launcher/node_config.h"
#include "supervision/model_owner/model_identity.h"
#include "text/model_assets.h"
#include "text/vocab_image.h"

namespace tie::cli {
namespace {

namespace fs = std::filesystem;
constexpr const char* kRecordFile = "model.toml";
constexpr size_t kMaxRecordBytes = 64 << 10;
constexpr size_t kMaxImageBytes = 512 << 20;

struct FileDigests {
  std::string weights, tokenizer, chat_template;  // hex; chat_template empty when there is none
};

Result<void> check_name(const std::string& name) {
  if (launcher::is_model_name(name) && owner::valid_model_name(name)) return {};
  return fail(Code::kBadRequest, "'" + name.substr(0, 80) +
                                     "' cannot be a model's name: 1 to 48 letters, digits, dots, dashes or "
                                     "underscores, the first a letter or digit");
}

Result<FileDigests> digests_of(const fs::path& folder) {
  FileDigests out;
  TIE_TRY(crypto::Digest weights, crypto::sha256_file(folder / owner::kWeightsFile));
  TIE_TRY(crypto::Digest tokenizer, crypto::sha256_file(folder / owner::kTokenizerFile));
  out.weights = to_hex(weights);
  out.tokenizer = to_hex(tokenizer);
  std::error_code ignored;
  if (fs::exists(folder / owner::kTemplateFile, ignored)) {
    TIE_TRY(crypto::Digest chat_template, crypto::sha256_file(folder / owner::kTemplateFile));
    out.chat_template = to_hex(chat_template);
  }
  return out;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + '"';
}

std::string record_text(const text::ModelAssets& assets, const FileDigests& digests, const std::string& model_id,
                        const std::string& source) {
  return fmt::format(
      "# Written by `tie model add`. Digests are checked by `tie model verify`.\n"
      "architecture = {}\ncontext_tokens = {}\ntitle = {}\nsource = {}\nmodel_id = \"{}\"\n"
      "weights_sha256 = \"{}\"\ntokenizer_sha256 = \"{}\"\ntemplate_sha256 = \"{}\"\n",
      quoted(assets.architecture), assets.context_length, quoted(assets.name), quoted(source), model_id,
      digests.weights, digests.tokenizer, digests.chat_template);
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

Result<toml::table> read_record(const fs::path& folder) {
  TIE_TRY(Bytes text, os::read_file(folder / kRecordFile, kMaxRecordBytes));
  try {
    return toml::parse(as_text(text));
  } catch (const toml::parse_error& error) {
    return fail(Code::kCorrupt, (folder / kRecordFile).string() + ": " + std::string(error.description()));
  }
}

std::string text_of(const toml::table& table, const char* key) {
  return table[key].value_or(std::string());
}

ModelRecord record_of(const fs::path& folder, const toml::table& table) {
  std::error_code ignored;
  ModelRecord out{folder.filename(),
                  text_of(table, "architecture"),
                  text_of(table, "model_id"),
                  text_of(table, "weights_sha256"),
                  0,
                  0};
  out.context_tokens = uint64_t(table["context_tokens"].value_or(int64_t{0}));
  auto size = fs::file_size(folder / owner::kWeightsFile, ignored);
  out.weights_bytes = ignored ? 0 : size;
  return out;
}

Result<fs::path> existing_folder(const std::string& assets, const std::string& name) {
  TIE_CHECK_OK(check_name(name));
  fs::path folder = fs::path(assets) / "models" / name;
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored))
    return fail(Code::kNotFound, "there is no model '" + name + "' in " + assets + "; `tie model list` shows them");
  return folder;
}

// An image that this build can read. A newer build may lay vocabularies out anew.
bool is_current(const fs::path& folder) {
  auto image = os::read_file(folder / owner::kTokenizerFile, kMaxImageBytes);
  return image && text::Vocab::open(*image).has_value();
}

// That `gguf_path` holds the very weights that the installed model was added with.
Result<bool> same_weights(const fs::path& folder, const std::string& gguf_path) {
  TIE_TRY(toml::table table, read_record(folder));
  TIE_TRY(crypto::Digest digest, crypto::sha256_file(gguf_path));
  return to_hex(digest) == text_of(table, "weights_sha256");
}

// Takes away what is installed under the name, so that it can be installed anew; only when it is the same model.
Result<void> make_way(const fs::path& target, const std::string& gguf_path) {
  auto same = same_weights(target, gguf_path);
  if (!same || !*same) {
    std::string name = target.filename();
    return fail(Code::kAlreadyExists,
                "another model '" + name + "' is there already; remove it with: tie model remove " + name);
  }
  std::error_code error;
  fs::remove_all(target, error);
  if (error) return fail(Code::kIo, "replacing " + target.string() + ": " + error.message());
  return {};
}

Result<void> fill_folder(const fs::path& folder, const std::string& gguf_path) {
  TIE_TRY(text::ModelAssets assets, text::compile_model_assets(gguf_path));
  TIE_CHECK_OK(place_weights(gguf_path, folder / owner::kWeightsFile));
  TIE_CHECK_OK(os::write_file_atomic(folder / owner::kTokenizerFile, assets.tokenizer_image, 0644));
  if (!assets.chat_template.empty())
    TIE_CHECK_OK(os::write_file_atomic(folder / owner::kTemplateFile, as_bytes(assets.chat_template), 0644));
  TIE_TRY(FileDigests digests, digests_of(folder));
  TIE_TRY(crypto::Digest id, owner::model_id_of_folder(folder));
  return os::write_file_atomic(
      folder / kRecordFile, as_bytes(record_text(assets, digests, to_hex(id), fs::path(gguf_path).filename())), 0644);
}

}  // namespace

std::string model_name_of_file(const std::string& gguf_path) {
  std::string name = fs::path(gguf_path).filename();
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? char(c + 32) : c;
  if (name.ends_with(".gguf")) name.resize(name.size() - 5);
  for (char& c : name) {
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-')) c = '-';
  }
  return name.substr(0, 48);
}

Result<ModelRecord> add_model(const std::string& assets, const std::string& gguf_path, const std::string& given) {
  std::string name = given.empty() ? model_name_of_file(gguf_path) : given;
  TIE_CHECK_OK(check_name(name));
  std::error_code error;
  if (!fs::is_regular_file(gguf_path, error)) return fail(Code::kNotFound, "there is no file " + gguf_path);
  fs::path models = fs::path(assets) / "models", target = models / name;
  fs::path aside = models / ("." + name + "." + random_hex(4));
  fs::create_directories(aside, error);
  if (error) return fail(Code::kIo, "making " + aside.string() + ": " + error.message());
  auto filled = fill_folder(aside, gguf_path);
  if (filled && fs::exists(target, error)) filled = make_way(target, gguf_path);
  if (filled) fs::rename(aside, target, error);
  if (!filled || error) {
    std::error_code ignored;
    fs::remove_all(aside, ignored);
    if (!filled) return std::unexpected(std::move(filled.error()).context(gguf_path));
    return fail(Code::kIo, "naming " + target.string() + ": " + error.message());
  }
  TIE_TRY(toml::table table, read_record(target));
  return record_of(target, table);
}

Result<std::vector<ModelRecord>> list_models(const std::string& assets) {
  std::vector<ModelRecord> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::path(assets) / "models", error)) {
    std::string name = entry.path().filename();
    if (!check_name(name)) continue;
    auto table = read_record(entry.path());
    if (!table) continue;
    out.push_back(record_of(entry.path(), *table));
    out.back().current = is_current(entry.path());
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return out;
}

Result<ModelRecord> verify_model(const std::string& assets, const std::string& name) {
  TIE_TRY(fs::path folder, existing_folder(assets, name));
  TIE_TRY(toml::table table, read_record(folder));
  TIE_TRY(FileDigests now, digests_of(folder));
  auto changed = [&](const char* file) {
    return fail(Code::kCorrupt, (folder / file).string() + " is not what was added: its SHA-256 has changed");
  };
  if (now.weights != text_of(table, "weights_sha256")) return changed(owner::kWeightsFile);
  if (now.tokenizer != text_of(table, "tokenizer_sha256")) return changed(owner::kTokenizerFile);
  if (now.chat_template != text_of(table, "template_sha256")) return changed(owner::kTemplateFile);
  return record_of(folder, table);
}

Result<void> remove_model(const std::string& assets, const std::string& name) {
  TIE_TRY(fs::path folder, existing_folder(assets, name));
  std::error_code error;
  fs::path aside = folder.parent_path() / ("." + name + "." + random_hex(4));
  fs::rename(folder, aside, error);
  if (!error) fs::remove_all(aside, error);
  if (error) return fail(Code::kIo, "removing " + folder.string() + ": " + error.message());
  return {};
}

}  // namespace tie::cli
