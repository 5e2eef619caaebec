#include "client/cli/model_assets.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <stdio.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "base/random.h"
#include "client/cli/model_sources.h"
#include "os/fd.h"
#include "supervision/launcher/node_config.h"
#include "supervision/model_owner/model_identity.h"
#include "text/vocab_image.h"

namespace tie::cli {
namespace {

namespace fs = std::filesystem;
constexpr const char* kRecordFile = "model.toml";
constexpr size_t kMaxTemplateBytes = 1 << 20;
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

// [sampling] of model.toml: what the model recommends, then what the operator said.
Result<std::string> sampling_text(const ModelParts& parts, const std::vector<std::string>& given) {
  struct Range {
    const char* key;
    double least, most;
  };
  constexpr Range kKeys[] = {
      {"temperature", 0, 2}, {"top_p", 0, 1}, {"min_p", 0, 1}, {"top_k", 0, 1 << 20}, {"repetition_penalty", 0.01, 10}};
  std::map<std::string, double> values = parts.sampling;
  for (const std::string& item : given) {
    const size_t equals = item.find('=');
    char* end = nullptr;
    const double value = equals == std::string::npos ? 0 : std::strtod(item.c_str() + equals + 1, &end);
    if (equals == std::string::npos || end == item.c_str() + equals + 1 || *end != 0)
      return fail(Code::kBadRequest, "'" + item + "' is not KEY=NUMBER");
    values[item.substr(0, equals)] = value;
  }
  std::string out;
  for (const auto& [key, value] : values) {
    const auto* known = std::find_if(std::begin(kKeys), std::end(kKeys), [&](const Range& r) { return key == r.key; });
    if (known == std::end(kKeys))
      return fail(
          Code::kBadRequest,
          "'" + key + "' is not a sampling default; these are: temperature, top_p, top_k, min_p, repetition_penalty");
    if (!(value >= known->least && value <= known->most))
      return fail(Code::kBadRequest,
                  fmt::format("{} {} is not between {} and {}", key, value, known->least, known->most));
    out += key == "top_k" ? fmt::format("top_k = {}\n", static_cast<int64_t>(value))
                          : fmt::format("{} = {:#}\n", key, value);
  }
  return out.empty() ? out : "[sampling]\n" + out;
}

// How many processes the model is divided over, and its KV cache; nothing for what is usual.
std::string wishes_text(const AddModel& request) {
  return (request.kv_cache.empty() ? "" : fmt::format("kv_cache = {}\n", quoted(request.kv_cache))) +
         (request.device.empty() ? "" : fmt::format("device = {}\n", quoted(request.device))) +
         (request.gpus.empty() ? "" : fmt::format("gpus = [{}]\n", fmt::join(request.gpus, ", "))) +
         (request.ranks > 1 ? fmt::format("ranks = {}\n", request.ranks) : "") +
         (request.stages > 1 ? fmt::format("stages = {}\n", request.stages) : "");
}

std::string record_text(const ModelParts& parts, const FileDigests& digests, const std::string& model_id,
                        const AddModel& request, const std::string& sampling) {
  return fmt::format(
      "# Written by `tie model add`. Digests are checked by `tie model verify`.\n"
      "architecture = {}\ncontext_tokens = {}\ntitle = {}\nsource = {}\nmodel_id = \"{}\"\n"
      "weights_sha256 = \"{}\"\ntokenizer_sha256 = \"{}\"\ntemplate_sha256 = \"{}\"\n{}{}",
      quoted(parts.architecture), parts.context_tokens, quoted(parts.title),
      quoted(fs::path(request.source).filename()), model_id, digests.weights, digests.tokenizer, digests.chat_template,
      wishes_text(request), sampling);
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

// That `weights` are the very ones that the installed model was added with.
Result<bool> same_weights(const fs::path& installed, const fs::path& weights) {
  TIE_TRY(toml::table table, read_record(installed));
  TIE_TRY(crypto::Digest digest, crypto::sha256_file(weights));
  return to_hex(digest) == text_of(table, "weights_sha256");
}

// Puts `aside` in the place of what is installed under the name, in one step where the file system can, so that a node
// that looks meanwhile finds the one or the other. Only the same model, unless another is wanted.
Result<void> replace_installed(const fs::path& aside, const fs::path& target, bool another_wanted) {
  auto same = same_weights(target, aside / owner::kWeightsFile);
  if ((!same || !*same) && !another_wanted) {
    std::string name = target.filename();
    return fail(Code::kAlreadyExists, "another model '" + name +
                                          "' is there already; put this one in its place with "
                                          "--replace, or remove it with: tie model remove " +
                                          name);
  }
  if (::renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    std::error_code ignored;
    fs::remove_all(aside, ignored);
    return {};
  }
  std::error_code error;
  fs::remove_all(target, error);
  if (!error) fs::rename(aside, target, error);
  if (error) return fail(Code::kIo, "replacing " + target.string() + ": " + error.message());
  return {};
}

// The operator's wishes over what the model brings.
Result<void> apply_wishes(const AddModel& request, ModelParts& parts) {
  if (request.context_tokens > parts.context_tokens && parts.context_tokens != 0)
    return fail(Code::kBadRequest,
                fmt::format("a context of {} exceeds the model's {}", request.context_tokens, parts.context_tokens));
  if (request.context_tokens != 0) parts.context_tokens = request.context_tokens;
  if (request.template_file.empty()) return {};
  TIE_TRY(Bytes text, os::read_file(request.template_file, kMaxTemplateBytes));
  parts.chat_template = std::string(as_text(text));
  return {};
}

Result<void> fill_folder(const fs::path& folder, const AddModel& request) {
  TIE_TRY(ModelParts parts, take_model(request.source, folder / owner::kWeightsFile, request.keep_precision));
  TIE_CHECK_OK(apply_wishes(request, parts));
  TIE_TRY(const std::string sampling, sampling_text(parts, request.sampling));
  TIE_CHECK_OK(os::write_file_atomic(folder / owner::kTokenizerFile, parts.tokenizer_image, 0644));
  if (!parts.chat_template.empty())
    TIE_CHECK_OK(os::write_file_atomic(folder / owner::kTemplateFile, as_bytes(parts.chat_template), 0644));
  TIE_TRY(FileDigests digests, digests_of(folder));
  TIE_TRY(crypto::Digest id, owner::model_id_of_folder(folder));
  return os::write_file_atomic(folder / kRecordFile,
                               as_bytes(record_text(parts, digests, to_hex(id), request, sampling)), 0644);
}

// As the owner will judge them (model_owner/model_record.h), but before anything is written.
Result<void> check_gpus(const AddModel& request) {
  if (request.gpus.empty()) return {};
  if (request.device != "cuda" && request.device != "auto")
    return fail(Code::kBadRequest, "--gpus says which GPUs a model is on: it needs --device cuda or auto");
  if (request.gpus.size() != uint64_t{request.ranks} * request.stages)
    return fail(Code::kBadRequest, fmt::format("--gpus names {}, and the model has {} ranks: one for each",
                                               request.gpus.size(), uint64_t{request.ranks} * request.stages));
  std::set<uint32_t> different(request.gpus.begin(), request.gpus.end());
  if (different.size() != request.gpus.size())
    return fail(Code::kBadRequest, "--gpus names one GPU twice: each rank needs its own");
  return {};
}

}  // namespace

Result<std::string> kv_cache_of(const std::string& assets, const std::string& name) {
  TIE_TRY(fs::path folder, existing_folder(assets, name));
  TIE_TRY(toml::table table, read_record(folder));
  return text_of(table, "kv_cache");
}

std::string model_name_of_file(const std::string& source) {
  fs::path path(source);
  std::string name = path.has_filename() ? path.filename() : path.parent_path().filename();  // "folder/" names a folder
  for (char& c : name) c = c >= 'A' && c <= 'Z' ? char(c + 32) : c;
  if (name.ends_with(".gguf")) name.resize(name.size() - 5);
  for (char& c : name) {
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-')) c = '-';
  }
  return name.substr(0, 48);
}

Result<ModelRecord> add_model(const std::string& assets, const AddModel& request) {
  TIE_CHECK_OK(check_gpus(request));
  std::string name = request.name.empty() ? model_name_of_file(request.source) : request.name;
  TIE_CHECK_OK(check_name(name));
  std::error_code error;
  if (!fs::exists(request.source, error)) return fail(Code::kNotFound, "there is no file or folder " + request.source);
  fs::path models = fs::path(assets) / "models", target = models / name;
  fs::path aside = models / ("." + name + "." + random_hex(4));
  fs::create_directories(aside, error);
  if (error) return fail(Code::kIo, "making " + aside.string() + ": " + error.message());
  auto filled = fill_folder(aside, request);
  if (filled && fs::exists(target, error)) {
    filled = replace_installed(aside, target, request.replace);
  } else if (filled) {
    fs::rename(aside, target, error);
  }
  if (!filled || error) {
    std::error_code ignored;
    fs::remove_all(aside, ignored);
    if (!filled) return std::unexpected(std::move(filled.error()).context(request.source));
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
