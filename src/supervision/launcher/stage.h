// Copies of what will run, in memory: each program, the shared libraries it loads, and the model files that per-request
// processes read. Only staged copies are executed and measured, so what was measured is what runs even when the
// installed tree changes underneath. Used once at start, by one thread. The copies live below RUN/stage and go with the
// run directory.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "os/sandbox.h"
#include "supervision/launcher/release_manifest.h"

namespace tie::launcher {

struct StagedProgram {
  std::string path;                      // RUN/stage/prefix/libexec/tie/NAME
  std::vector<os::Bind> binds;           // its loader and libraries, for a sandbox
  std::vector<std::string> log_formats;  // the lines it may write
};

class Stage {
 public:
  // Copies PREFIX/{bin,lib,libexec} below RUN/stage/prefix and measures the copies.
  static Result<Stage> create(const std::string& run, const std::string& prefix);

  const ReleaseManifest& manifest() const { return manifest_; }
  const std::string& prefix() const { return prefix_; }
  // A program with what it needs; `name` is relative to libexec/tie. kNotFound when the tree lacks it.
  Result<StagedProgram> program(const std::string& name);
  // Adds the libraries of one staged program to another's folder, for programs that share a sandbox.
  Result<void> merge_libraries(const std::string& from, const std::string& into);
  // Adds libraries that a staged program opens by name. They are the machine's, not the release's: the release id does
  // not cover them, so what they are is kept for whoever reports it.
  Result<void> add_libraries(const std::vector<std::string>& libraries, const std::string& into);
  // All that was added so: host paths and digests of the copies, sorted.
  const std::vector<MeasuredFile>& added_libraries() const { return added_; }
  // From here on only assets that this Ed25519 key has signed are staged (supervision/signed_assets).
  void require_signed(Bytes public_key) { assets_key_ = std::move(public_key); }
  // RUN/stage/app-assets/{models/MODEL/{tokenizer.img, template.jinja, model.toml}, prompts/*.json}: what a request
  // process may read, weights not among it. Called again whenever a runtime starts, which is how an asset update
  // reaches the node. What was staged of a model stays while the owner hands out another version than lies on disk
  // (`served`: the folder where it says which; served_version.h): requests are prepared for the model that answers.
  // kPermissionDenied: a key is required and a file is not as it was signed; what was staged stays.
  Result<std::string> app_assets(const std::string& assets, const std::string& served,
                                 const std::vector<std::string>& models) const;

 private:
  Result<void> stage_library(const std::string& library, const std::string& folder);

  std::string root_;    // RUN/stage
  std::string prefix_;  // RUN/stage/prefix
  ReleaseManifest manifest_;
  std::vector<MeasuredFile> added_;
  Bytes assets_key_;                              // empty: assets are taken as they are
  std::map<std::string, std::string> libraries_;  // host path -> staged copy
};

}  // namespace tie::launcher
