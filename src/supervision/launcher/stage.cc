#include "supervision/launcher/stage.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>

#include "os/program_files.h"
#include "supervision/launcher/asset_record.h"
#include "supervision/model_owner/served_version.h"
#include "supervision/signed_assets/asset_manifest.h"

namespace tie::launcher {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kHardlyAnyRoomBytes = uintmax_t{1} << 20;

// A full tmpfs comes out of the library as an input/output error, which sends nobody to the right place.
Error copying_failed(const fs::path& from, const fs::path& to, const std::error_code& error) {
  std::error_code ignored;
  fs::path there = to;
  while (there.has_relative_path() && !fs::exists(there, ignored)) there = there.parent_path();
  fs::space_info room = fs::space(there, ignored);
  if (!ignored && room.available < kHardlyAnyRoomBytes)
    return {Code::kIo, "no room for " + from.string() + " in " + there.string() + ": the memory folder of " +
                           std::to_string(room.capacity >> 20) +
                           " MB is full; enlarge it (mount -o remount,size=…) or name another with --run-dir"};
  return {Code::kIo, "copying " + from.string() + " into memory: " + error.message()};
}

Result<void> copy_tree(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (!fs::is_directory(from, error)) return {};
  fs::create_directories(to, error);
  if (!error) fs::copy(from, to, fs::copy_options::recursive | fs::copy_options::overwrite_existing, error);
  if (error) return std::unexpected(copying_failed(from, to, error));
  return {};
}

using AcceptCopy = std::function<Result<void>(const std::string& copy)>;

// Beside the target and then in its place: a process that has mapped the old file keeps it whole. Unchanged files are
// left. `accept` judges the copy before it takes its place.
Result<void> copy_one(const fs::path& from, const fs::path& to, const AcceptCopy& accept = {}) {
  std::error_code error, ignored;
  auto changed = fs::last_write_time(from, error);
  if (!error && fs::last_write_time(to, ignored) == changed &&
      fs::file_size(to, ignored) == fs::file_size(from, ignored))
    return {};
  fs::path beside = to.string() + ".new";
  if (!error) fs::create_directories(to.parent_path(), error);
  if (!error) fs::copy_file(from, beside, fs::copy_options::overwrite_existing, error);
  if (!error && accept)
    if (auto accepted = accept(beside); !accepted) {
      fs::remove(beside, ignored);
      return accepted;
    }
  if (!error) fs::last_write_time(beside, changed, error);
  if (!error) fs::rename(beside, to, error);
  if (error) return std::unexpected(copying_failed(from, to, error));
  return {};
}

constexpr const char* kAppFiles[] = {"tokenizer.img", "model.toml", "template.jinja"};

bool is_optional(std::string_view file) {
  return file == "template.jinja";
}

// Whether what lies in a model's folder is what the owner hands out; also before it has said what that is.
bool is_served(const std::string& folder, const std::optional<owner::ServedVersion>& served) {
  if (!served) return true;
  const std::string made_for = asset_record(folder)["model_id"].value_or(std::string());  // empty: it does not say
  if (!made_for.empty() && made_for != to_hex(served->model_id)) return false;
  auto tokenizer = crypto::sha256_file(folder + "/tokenizer.img");
  auto chat_template = crypto::sha256_file(folder + "/template.jinja");
  if (!chat_template && chat_template.error().code == Code::kNotFound) chat_template = crypto::sha256(ByteView{});
  return tokenizer && chat_template && *tokenizer == served->tokenizer && *chat_template == served->chat_template;
}

}  // namespace

Result<Stage> Stage::create(const std::string& run, const std::string& prefix) {
  Stage out;
  out.root_ = run + "/stage";
  out.prefix_ = out.root_ + "/prefix";
  for (const char* folder : {"bin", "lib", "libexec"})
    TIE_CHECK_OK(copy_tree(fs::path(prefix) / folder, fs::path(out.prefix_) / folder));
  TIE_TRY(out.manifest_, measure_release(out.prefix_));
  return out;
}

Result<void> Stage::stage_library(const std::string& library, const std::string& folder) {
  auto known = libraries_.find(library);
  if (known == libraries_.end()) {
    std::string copy = root_ + "/pool/" + std::to_string(libraries_.size());
    TIE_CHECK_OK(copy_one(library, copy));
    known = libraries_.emplace(library, copy).first;
  }
  // Programs share the copies: a hard link costs no memory.
  std::error_code error;
  fs::path link = fs::path(folder) / fs::path(library).filename();
  if (fs::exists(link, error)) return {};
  fs::create_hard_link(known->second, link, error);
  if (error) return fail(Code::kIo, "linking a staged library: " + error.message());
  return {};
}

Result<StagedProgram> Stage::program(const std::string& name) {
  StagedProgram out;
  // The client's program has its own place.
  out.path = prefix_ + (name == "tie" ? "/bin/" : "/libexec/tie/") + name;
  std::error_code error;
  if (!fs::exists(out.path, error)) return fail(Code::kNotFound, "the installed tree has no program " + name);
  TIE_TRY(out.log_formats, os::program_log_formats(out.path));
  TIE_TRY(os::ProgramLibraries needed, os::program_libraries(out.path));
  if (needed.loader.empty()) return out;
  std::string folder = root_ + "/libraries/" + name;
  fs::create_directories(folder, error);
  TIE_CHECK_OK(stage_library(needed.loader, folder));
  for (const std::string& library : needed.libraries) TIE_CHECK_OK(stage_library(library, folder));
  // One folder serves as the loader's place and as its default search path, which is where libc was found.
  out.binds.push_back({.path = folder, .at = fs::path(needed.loader).parent_path(), .executable = true});
  std::string search = "/lib/x86_64-linux-gnu";
  for (const std::string& library : needed.libraries)
    if (fs::path(library).filename().string().starts_with("libc.so")) search = fs::path(library).parent_path();
  if (search != out.binds[0].at) out.binds.push_back({.path = folder, .at = search, .executable = true});
  return out;
}

Result<void> Stage::merge_libraries(const std::string& from, const std::string& into) {
  std::error_code error;
  fs::path target = root_ + "/libraries/" + into;
  for (const auto& entry : fs::directory_iterator(root_ + "/libraries/" + from, error)) {
    fs::path copy = target / entry.path().filename();
    if (fs::exists(copy, error)) continue;
    fs::create_hard_link(entry.path(), copy, error);
    if (error) return fail(Code::kIo, "linking a staged library: " + error.message());
  }
  return {};
}

Result<void> Stage::add_libraries(const std::vector<std::string>& libraries, const std::string& into) {
  for (const std::string& library : libraries) {
    TIE_CHECK_OK(stage_library(library, root_ + "/libraries/" + into));
    if (std::ranges::find(added_, library, &MeasuredFile::path) != added_.end()) continue;
    TIE_TRY(crypto::Digest digest, crypto::sha256_file(libraries_.at(library)));
    added_.push_back({library, to_hex(digest)});
  }
  std::ranges::sort(added_, {}, &MeasuredFile::path);
  return {};
}

Result<std::string> Stage::app_assets(const std::string& assets, const std::string& served,
                                      const std::vector<std::string>& models) const {
  std::string out = root_ + "/app-assets";
  std::optional<assets::AssetManifest> manifest;
  if (!assets_key_.empty()) {
    TIE_TRY(manifest, assets::AssetManifest::open_signed(assets, assets_key_));
  }
  auto stage_one = [&](const std::string& path) {
    return copy_one(assets + "/" + path, out + "/" + path, [&](const std::string& copy) -> Result<void> {
      if (!manifest) return {};
      TIE_TRY(crypto::Digest digest, crypto::sha256_file(copy));
      return manifest->check(path, digest);
    });
  };
  std::error_code error;
  for (const std::string& model : models) {
    const std::string folder = "/models/" + model;
    if (fs::exists(out + folder, error) && !is_served(assets + folder, owner::read_served(served, model))) continue;
    for (const char* file : kAppFiles) {
      std::string path = "models/" + model + "/" + file;
      if (fs::exists(assets + "/" + path, error) || !is_optional(file))
        TIE_CHECK_OK(stage_one(path));
      else
        fs::remove(out + "/" + path, error);
    }
  }
  fs::create_directories(out + "/prompts", error);
  for (const auto& entry : fs::directory_iterator(out + "/prompts", error))
    if (!fs::exists(assets + "/prompts/" + entry.path().filename().string(), error)) fs::remove(entry.path(), error);
  for (const auto& entry : fs::directory_iterator(assets + "/prompts", error))
    if (entry.path().extension() == ".json") TIE_CHECK_OK(stage_one("prompts/" + entry.path().filename().string()));
  return out;
}

}  // namespace tie::launcher
