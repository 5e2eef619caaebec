#include "keys/workload_servicesd/node_facts.h"

#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>

#include "keys/workload_servicesd/limits.h"
#include "os/fd.h"
#include "supervision/model_owner/model_identity.h"
#include "supervision/model_owner/served_version.h"

namespace tie::wsd {
namespace {

namespace fs = std::filesystem;

bool is_manifest_line(std::string_view line) {
  constexpr size_t kHexDigits = 64;
  if (line.size() <= kHexDigits + 2 || line.substr(kHexDigits, 2) != "  ") return false;
  return std::all_of(line.begin(), line.begin() + kHexDigits,
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// As claims name them: sorted, and once what two names stand for.
void make_set(std::vector<crypto::Digest>& digests) {
  std::sort(digests.begin(), digests.end());
  digests.erase(std::unique(digests.begin(), digests.end()), digests.end());
}

// Facts for display only; a file that does not parse states none. Returns the id of the model that it is made for.
std::string read_model_toml(const std::string& path, Model& model) {
  auto text = os::read_file(path, 64 << 10);
  if (!text) return {};
  try {
    const toml::table table = toml::parse(as_text(*text));
    model.context_tokens = table["context_tokens"].value_or(uint32_t{0});
    model.architecture = table["architecture"].value_or(std::string());
    return table["model_id"].value_or(std::string());
  } catch (const toml::parse_error&) {
    return {};
  }
}

// What the folder holds, or what the owner hands out instead; then the record beside the files is not the model's. The
// weights are read only where owner and record do not say: the owner says it at each start, of one model after another.
Result<void> identify(const std::string& folder, const std::string& served, Model& model) {
  const auto version = served.empty() ? std::nullopt : owner::read_served(served, model.name);
  Model on_disk = model;
  const std::string made_for = read_model_toml(folder + "/model.toml", on_disk);
  if (version && made_for == to_hex(version->model_id)) {
    on_disk.model_id = version->model_id;
  } else if (!version || made_for.empty()) {
    auto id = owner::model_id_of_folder(folder);
    if (!id && !version) return std::unexpected(std::move(id.error()));
    if (id) on_disk.model_id = *id;
  }
  if (!version || on_disk.model_id == version->model_id)
    model = std::move(on_disk);
  else
    model.model_id = version->model_id;
  return {};
}

Result<std::vector<Model>> read_models(const std::string& folder, const std::string& served) {
  std::vector<Model> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (!owner::valid_model_name(name) || !fs::exists(entry.path() / owner::kWeightsFile, error)) continue;
    if (out.size() >= kMaxModels) return fail(Code::kTooLarge, folder + " holds more than 64 models");
    Model model;
    model.name = name;
    TIE_CHECK_OK(identify(entry.path(), served, model));
    out.push_back(std::move(model));
  }
  if (out.empty()) return fail(Code::kNotFound, folder + " holds no model");
  std::sort(out.begin(), out.end(), [](const Model& a, const Model& b) { return a.name < b.name; });
  return out;
}

Result<std::vector<crypto::Digest>> read_prompts(const std::string& folder) {
  std::vector<crypto::Digest> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".json") continue;
    if (out.size() >= kMaxPrompts) return fail(Code::kTooLarge, folder + " holds more than 128 prompts");
    TIE_TRY(const crypto::Digest digest, crypto::sha256_file(entry.path()));
    out.push_back(digest);
  }
  make_set(out);
  return out;
}

}  // namespace

std::vector<crypto::Digest> NodeFacts::model_ids() const {
  std::vector<crypto::Digest> out;
  for (const Model& model : models) out.push_back(model.model_id);
  make_set(out);
  return out;
}

Result<crypto::Digest> release_id_of(const std::string& manifest_path) {
  TIE_TRY(const Bytes text, os::read_file(manifest_path, kMaxManifestBytes));
  std::string_view left = as_text(text);
  if (left.empty() || left.back() != '\n')
    return fail(Code::kCorrupt, manifest_path + " is not a whole release manifest");
  while (!left.empty()) {
    const size_t end = left.find('\n');
    if (!is_manifest_line(left.substr(0, end)))
      return fail(Code::kCorrupt, manifest_path + " has a line that is not 'sha256  path'");
    left.remove_prefix(end + 1);
  }
  return crypto::sha256(text);
}

Result<NodeFacts> read_node_facts(const std::string& manifest_path, const std::string& assets,
                                  const std::string& served) {
  NodeFacts out;
  TIE_TRY(out.release_id, release_id_of(manifest_path));
  TIE_TRY(out.models, read_models(assets + "/models", served));
  TIE_TRY(out.prompt_digests, read_prompts(assets + "/prompts"));
  return out;
}

}  // namespace tie::wsd
