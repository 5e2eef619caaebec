#include "supervision/model_owner/model_store.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>

#include "supervision/model_owner/model_record.h"

namespace tie::owner {

const char* load_state_name(LoadState state) {
  switch (state) {
    case LoadState::kLoading:
      return "loading";
    case LoadState::kReady:
      return "ready";
    case LoadState::kError:
      return "error";
  }
  return "error";
}

namespace {

// Size, time and inode of everything a model is loaded from: cheap to take, different after every replacement by rename
// or copy.
std::string fingerprint_of(const std::string& folder, const std::string& prompts_folder) {
  std::string out;
  auto add = [&](const std::string& path) {
    struct stat st{};
    if (::stat(path.c_str(), &st) != 0) return;
    for (uint64_t part : {static_cast<uint64_t>(st.st_ino), static_cast<uint64_t>(st.st_size),
                          static_cast<uint64_t>(st.st_mtim.tv_sec), static_cast<uint64_t>(st.st_mtim.tv_nsec)})
      out += std::to_string(part) + ".";
    out += path + "\n";
  };
  for (const char* file : {kWeightsFile, kTokenizerFile, kTemplateFile}) add(folder + "/" + file);
  // Of model.toml only what the record holds concerns the owner. A wrong one is what it says: mended, it is another.
  if (auto record = read_model_record(folder))
    out += record->summary();
  else
    out += record.error().message + "\n";
  std::error_code error;
  std::vector<std::string> prompts;
  for (const auto& entry : std::filesystem::directory_iterator(prompts_folder, error))
    prompts.push_back(entry.path().string());
  std::sort(prompts.begin(), prompts.end());
  for (const std::string& prompt : prompts) add(prompt);
  add(prompts_folder + "/../manifest.sig");  // what was refused as unsigned is looked at again once it is signed
  return out;
}

}  // namespace

ModelStore::ModelStore(std::string assets_folder, Loader loader)
    : assets_folder_(std::move(assets_folder)),
      models_folder_(assets_folder_ + "/models"),
      loader_(std::move(loader)) {}

Result<void> ModelStore::scan() {
  std::error_code error;
  std::filesystem::directory_iterator entries(models_folder_, error);
  if (error) return fail(Code::kNotFound, models_folder_ + ": " + error.message());
  std::lock_guard lock(mutex_);
  for (const auto& entry : entries) {
    std::string name = entry.path().filename().string();
    if (!valid_model_name(name) || !entry.is_directory(error)) continue;
    if (models_.size() >= kMaxModels)
      return fail(Code::kTooLarge, models_folder_ + " holds more than " + std::to_string(kMaxModels) + " models");
    models_[name].name = name;
  }
  return {};
}

void ModelStore::load() {
  std::vector<std::string> waiting;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [name, row] : models_)
      if (row.state == LoadState::kLoading) waiting.push_back(name);
  }
  for (const std::string& name : waiting)
    (void)load_one(name, fingerprint_of(models_folder_ + "/" + name, assets_folder_ + "/prompts"));
}

// Whether the model that is handed out is another now.
bool ModelStore::load_one(const std::string& name, const std::string& fingerprint) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return false;
    models_[name].name = name;
    ++models_[name].weight_file_reads;
    models_[name].fingerprint = fingerprint;
    models_[name].removed = false;
  }
  auto loaded = loader_(name, models_folder_ + "/" + name);
  std::lock_guard lock(mutex_);
  ModelRow& row = models_[name];
  changed_.notify_all();
  if (loaded) {
    row.loaded = std::make_shared<const LoadedModel>(std::move(*loaded));
    row.state = LoadState::kReady;
    ++row.generation;
    row.message.clear();
    row.code = Code::kOk;
    return true;
  }
  bool has_old = row.loaded != nullptr;
  row.message = (has_old ? "the new version is refused: " : "") + loaded.error().message;
  row.code = loaded.error().code;
  if (!has_old) row.state = LoadState::kError;
  return false;
}

bool ModelStore::refresh() {
  std::lock_guard one_at_a_time(refreshing_);
  std::map<std::string, std::string> on_disk;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(models_folder_, error)) {
    std::string name = entry.path().filename().string();
    std::error_code ignored;
    if (valid_model_name(name) && entry.is_directory(ignored) && on_disk.size() < kMaxModels)
      on_disk[name] = fingerprint_of(entry.path().string(), assets_folder_ + "/prompts");
  }
  if (error) return false;  // an asset folder that is away for a moment is not an order to forget everything
  std::vector<std::string> due;
  bool changed = false;
  {
    std::lock_guard lock(mutex_);
    for (auto& [name, row] : models_) {
      if (on_disk.contains(name) || row.loaded == nullptr) continue;
      row.loaded = nullptr;
      row.state = LoadState::kError;
      row.removed = true;
      row.message = "removed from the assets";
      row.code = Code::kModelNotFound;
      row.fingerprint.clear();
      changed = true;
    }
    for (const auto& [name, fingerprint] : on_disk) {
      auto known = models_.find(name);
      if (known == models_.end() || known->second.fingerprint != fingerprint) due.push_back(name);
    }
  }
  for (const std::string& name : due) changed = load_one(name, on_disk[name]) || changed;
  return changed;
}

Result<std::shared_ptr<const LoadedModel>> ModelStore::attach(const std::string& name, Deadline deadline) {
  std::unique_lock lock(mutex_);
  auto found = models_.find(name);
  if (found == models_.end()) return fail(Code::kModelNotFound, "this node has no model of that name");
  ModelRow& row = found->second;  // rows are never removed
  changed_.wait_for(lock, std::chrono::milliseconds(deadline.remaining_ms()),
                    [&] { return stopped_ || row.state != LoadState::kLoading; });
  if (stopped_) return fail(Code::kCancelled, "the model owner is stopping");
  if (row.state == LoadState::kLoading) return fail(Code::kNotReady, "the model is still loading");
  if (row.state == LoadState::kError)
    return fail(Code::kFailedPrecondition, "the model could not be loaded: " + row.message);
  ++row.attaches;
  return row.loaded;
}

Result<std::shared_ptr<const LoadedModel>> ModelStore::find(const std::string& name) const {
  std::lock_guard lock(mutex_);
  auto found = models_.find(name);
  if (found == models_.end()) return fail(Code::kModelNotFound, "this node has no model of that name");
  if (found->second.loaded == nullptr) return fail(Code::kNotReady, "the model is not loaded");
  return found->second.loaded;
}

void ModelStore::load_again(const std::string& name) {
  std::lock_guard lock(mutex_);
  auto found = models_.find(name);
  if (found == models_.end()) return;
  // What is no good goes first: memory for both may not be there.
  found->second.loaded = nullptr;
  found->second.state = LoadState::kLoading;
  found->second.fingerprint.clear();
}

std::vector<ModelRow> ModelStore::rows() const {
  std::lock_guard lock(mutex_);
  std::vector<ModelRow> out;
  for (const auto& [name, row] : models_) out.push_back(row);
  return out;
}

void ModelStore::stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

}  // namespace tie::owner
