#include "supervision/model_owner/model_store.h"

#include <chrono>
#include <filesystem>
#include <system_error>

namespace tie::owner {

const char* load_state_name(LoadState state) {
  switch (state) {
    case LoadState::kLoading: return "loading";
    case LoadState::kReady: return "ready";
    case LoadState::kError: return "error";
  }
  return "error";
}

ModelStore::ModelStore(std::string assets_folder, Loader loader) : models_folder_(std::move(assets_folder) + "/models"), loader_(std::move(loader)) {}

Result<void> ModelStore::scan() {
  std::error_code error;
  std::filesystem::directory_iterator entries(models_folder_, error);
  if (error) return fail(Code::kNotFound, models_folder_ + ": " + error.message());
  std::lock_guard lock(mutex_);
  for (const auto& entry : entries) {
    std::string name = entry.path().filename().string();
    if (!valid_model_name(name) || !entry.is_directory(error)) continue;
    if (models_.size() >= kMaxModels) return fail(Code::kTooLarge, models_folder_ + " holds more than " + std::to_string(kMaxModels) + " models");
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
  for (const std::string& name : waiting) {
    {
      std::lock_guard lock(mutex_);
      if (stopped_) return;
      ++models_[name].weight_file_reads;
    }
    auto loaded = loader_(name, models_folder_ + "/" + name);
    std::lock_guard lock(mutex_);
    ModelRow& row = models_[name];
    row.state = loaded ? LoadState::kReady : LoadState::kError;
    if (loaded) {
      row.loaded = std::make_shared<const LoadedModel>(std::move(*loaded));
    } else {
      row.message = loaded.error().message;
      row.code = loaded.error().code;
    }
    changed_.notify_all();
  }
}

Result<std::shared_ptr<const LoadedModel>> ModelStore::attach(const std::string& name, Deadline deadline) {
  std::unique_lock lock(mutex_);
  auto found = models_.find(name);
  if (found == models_.end()) return fail(Code::kModelNotFound, "this node has no model of that name");
  ModelRow& row = found->second;  // rows are never removed
  changed_.wait_for(lock, std::chrono::milliseconds(deadline.remaining_ms()), [&] { return stopped_ || row.state != LoadState::kLoading; });
  if (stopped_) return fail(Code::kCancelled, "the model owner is stopping");
  if (row.state == LoadState::kLoading) return fail(Code::kNotReady, "the model is still loading");
  if (row.state == LoadState::kError) return fail(Code::kFailedPrecondition, "the model could not be loaded: " + row.message);
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
