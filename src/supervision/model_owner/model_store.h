// The models that this node serves: which there are, how far each is loaded, what is handed out. One per
// tie-model-owner. Threads: any; one mutex. Loading runs on the thread that calls load(). Owns every descriptor; a
// LoadedModel lives as long as someone holds it, so a model that is replaced while a reply is being written stays valid
// for that reply.
#pragma once
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "supervision/model_owner/model_loader.h"

namespace tie::owner {

inline constexpr size_t kMaxModels = 16;

enum class LoadState { kLoading, kReady, kError };
const char* load_state_name(LoadState state);

struct ModelRow {
  std::string name;
  LoadState state = LoadState::kLoading;
  std::string message;  // why, when in error
  Code code = Code::kOk;
  std::shared_ptr<const LoadedModel> loaded;  // null until ready
  uint64_t generation = 0;                    // grows with each version that is handed out
  uint64_t weight_file_reads = 0;             // times the weights were read from their file in this process's life
  uint32_t attaches = 0;
  bool removed = false;     // taken away from the assets
  std::string fingerprint;  // of the files it was loaded from
};

class ModelStore {
 public:
  using Loader = std::function<Result<LoadedModel>(const std::string& name, const std::string& folder)>;
  ModelStore(std::string assets_folder, Loader loader);

  // Finds the models of `ASSETS/models`; all of them are "loading" from here on. kNotFound: no such folder; kTooLarge:
  // over kMaxModels.
  Result<void> scan();
  // Loads every model that is "loading"; returns when each is ready or in error.
  void load();

  // Looks at the assets again: loads what is new or has changed and puts it in the place of the old, forgets what is
  // gone. A new version that cannot be loaded leaves the old one in service, with the reason in its row; putting the
  // old files back is then no change at all. Returns whether anything else is handed out than before. Loads on the
  // calling thread; a second caller waits for the first, and so never returns before what it asks for is over.
  bool refresh();

  // Waits while the model is loading. Errors: kModelNotFound, kNotReady (still loading at the deadline), the loader's
  // error.
  Result<std::shared_ptr<const LoadedModel>> attach(const std::string& name, Deadline deadline);
  // A loaded model, without waiting and without counting an attach. kModelNotFound, kNotReady.
  Result<std::shared_ptr<const LoadedModel>> find(const std::string& name) const;
  // What is loaded went bad: the next refresh() reads the model from its files, changed or not.
  void load_again(const std::string& name);

  std::vector<ModelRow> rows() const;
  // Wakes every waiting attach with kCancelled; for shutdown.
  void stop();

 private:
  bool load_one(const std::string& name, const std::string& fingerprint);

  std::string assets_folder_, models_folder_;
  Loader loader_;
  std::mutex refreshing_;  // taken before mutex_
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, ModelRow> models_;
  bool stopped_ = false;
};

}  // namespace tie::owner
