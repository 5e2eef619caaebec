#include "supervision/launcher/node_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>

#include "os/fd.h"

namespace tie::launcher {
namespace {

namespace fs = std::filesystem;

using Setter = std::function<bool(const toml::node&)>;

Setter text(std::string& out) {
  return [&out](const toml::node& node) {
    auto value = node.value_exact<std::string>();
    if (value) out = *value;
    return value.has_value();
  };
}

Setter number(uint32_t& out) {
  return [&out](const toml::node& node) {
    auto value = node.value_exact<int64_t>();
    if (!value || *value < 0 || *value > UINT32_MAX) return false;
    out = static_cast<uint32_t>(*value);
    return true;
  };
}

Setter yes_or_no(bool& out) {
  return [&out](const toml::node& node) {
    auto value = node.value_exact<bool>();
    if (value) out = *value;
    return value.has_value();
  };
}

Setter names(std::vector<std::string>& out) {
  return [&out](const toml::node& node) {
    const toml::array* list = node.as_array();
    if (list == nullptr) return false;
    out.clear();
    for (const toml::node& item : *list) {
      auto value = item.value_exact<std::string>();
      if (!value) return false;
      out.push_back(*value);
    }
    return true;
  };
}

std::map<std::string, Setter> keys_of(NodeConfig& config) {
  // insecure_no_sandbox and raw_logs are flags only: a file that is copied from another machine must not switch
  // protection off.
  return {{"listen", text(config.listen)},
          {"assets", text(config.assets)},
          {"assets_key", text(config.assets_key)},
          {"models", names(config.models)},
          {"run_dir", text(config.run_dir)},
          {"token_issuer", text(config.token_issuer)},
          {"tpm", text(config.tpm)},
          {"proxy", text(config.proxy)},
          {"sandbox", text(config.sandbox)},
          {"kernels", text(config.kernels)},
          {"gpu_driver_root", text(config.gpu_driver_root)},
          {"gpu_fast_kernels", yes_or_no(config.gpu_fast_kernels)},
          {"cache_mib", number(config.cache_mib)},
          {"prewarmed_pairs", number(config.prewarmed_pairs)},
          {"max_requests", number(config.max_requests)},
          {"max_instances", number(config.max_instances)},
          {"threads", number(config.threads)},
          {"startup_timeout_s", number(config.startup_timeout_s)},
          {"drain_timeout_s", number(config.drain_timeout_s)}};
}

bool is_listen_address(const std::string& address) {
  size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 >= address.size()) return false;
  if (std::any_of(address.begin(), address.end(), [](unsigned char c) { return c <= ' ' || c >= 0x7f; })) return false;
  std::string port = address.substr(colon + 1);
  if (port.size() > 5 || !std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; }))
    return false;
  return std::stoul(port) <= 65535;
}

// A whole path that may stand in JSON and in a log as it is.
bool is_plain_path(const std::string& path) {
  return path.size() > 1 && path[0] == '/' && path.size() < PATH_MAX &&
         std::none_of(
             path.begin(), path.end(), [](unsigned char c) { return c < ' ' || c == '"' || c == '\\' || c >= 0x7f; });
}

// What a daemon would refuse after it was started is refused here, where the person who wrote it reads why.
Result<void> check_range(const char* key, uint32_t value, uint32_t least, uint32_t most) {
  if (value >= least && value <= most) return {};
  return fail(Code::kBadRequest, fmt::format("{} is between {} and {}, not {}", key, least, most, value));
}

// The sets of src/inference/bones/kernels that an operator may force.
constexpr std::array<std::string_view, 5> kKernelSets = {"amx", "avx512fp16", "avx512", "avx2", "reference"};

// Opening another kind might wait for ever, or say something about reading that helps nobody.
Result<void> check_is_file(const std::string& path) {
  std::error_code unknown;
  fs::file_status status = fs::status(path, unknown);
  if (!fs::exists(status) || fs::is_regular_file(status)) return {};
  return fail(Code::kBadRequest, fmt::format("{} is {} and no file: a configuration is a regular file", path,
                                             fs::is_directory(status) ? "a folder"
                                             : fs::is_fifo(status)    ? "a pipe"
                                                                      : "a device or a socket"));
}

bool is_complete_model(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "model.toml", ignored) && fs::exists(folder / "tokenizer.img", ignored) &&
         fs::exists(folder / "weights.gguf", ignored);
}

}  // namespace

Result<void> read_node_config(const std::string& path, NodeConfig& config) {
  TIE_CHECK_OK(check_is_file(path));
  TIE_TRY(Bytes bytes, os::read_file(path, kMaxConfigBytes));
  toml::table table;
  try {
    table = toml::parse(as_text(bytes), path);
  } catch (const toml::parse_error& error) {
    return fail(Code::kBadRequest,
                fmt::format("{}, line {}: {}", path, error.source().begin.line, error.description()));
  }
  auto keys = keys_of(config);
  for (const auto& [key, value] : table) {
    auto known = keys.find(std::string(key.str()));
    if (known == keys.end())
      return fail(Code::kBadRequest,
                  fmt::format("{}, line {}: unknown key '{}'", path, value.source().begin.line, key.str()));
    if (!known->second(value))
      return fail(Code::kBadRequest, fmt::format("{}, line {}: the value of '{}' has the wrong type or size", path,
                                                 value.source().begin.line, key.str()));
  }
  return {};
}

Result<void> check_node_config(const NodeConfig& config) {
  if (!is_listen_address(config.listen))
    return fail(Code::kBadRequest, "listen must be ADDRESS:PORT, not '" + config.listen + "'");
  if (config.sandbox != "auto" && config.sandbox != "bubblewrap" && config.sandbox != "direct")
    return fail(Code::kBadRequest, "sandbox is auto, direct or bubblewrap, not '" + config.sandbox + "'");
  if (config.proxy != "none" && !is_listen_address(config.proxy))
    return fail(Code::kBadRequest, "proxy must be ADDRESS:PORT or none, not '" + config.proxy + "'");
  if (!config.kernels.empty() && std::ranges::find(kKernelSets, config.kernels) == kKernelSets.end())
    return fail(Code::kBadRequest,
                fmt::format("kernels is one of {}, not '{}'", fmt::join(kKernelSets, ", "), config.kernels));
  if (!config.gpu_driver_root.empty() && !is_plain_path(config.gpu_driver_root))
    return fail(Code::kBadRequest,
                "gpu_driver_root is the whole path of a folder, not '" + config.gpu_driver_root + "'");
  if (config.proxy == config.listen)
    return fail(Code::kBadRequest, "listen and proxy are both '" + config.listen + "': each needs a port of its own");
  TIE_CHECK_OK(check_range("prewarmed_pairs", config.prewarmed_pairs, 0, kMaxPrewarmedPairs));
  TIE_CHECK_OK(check_range("max_instances", config.max_instances, 1, kMaxInstances));
  TIE_CHECK_OK(check_range("max_requests", config.max_requests, 1, kMaxInstances));
  TIE_CHECK_OK(check_range("cache_mib", config.cache_mib, 1, kMaxCacheMib));
  TIE_CHECK_OK(check_range("threads", config.threads, 0, kMaxThreads));
  TIE_CHECK_OK(check_range("startup_timeout_s", config.startup_timeout_s, 1, kMaxTimeoutS));
  TIE_CHECK_OK(check_range("drain_timeout_s", config.drain_timeout_s, 0, kMaxTimeoutS));
  if (config.prewarmed_pairs > config.max_instances)
    return fail(Code::kBadRequest, "prewarmed_pairs is larger than max_instances");
  // Every admitted request holds one instance of each program, and so does every waiting pair.
  if (uint64_t{config.max_requests} + config.prewarmed_pairs > config.max_instances)
    return fail(Code::kBadRequest,
                fmt::format("max_requests and prewarmed_pairs together ({}) are more than max_instances ({})",
                            uint64_t{config.max_requests} + config.prewarmed_pairs, config.max_instances));
  for (const std::string& name : config.models)
    if (!is_model_name(name)) return fail(Code::kBadRequest, "'" + name + "' cannot be a model's name");
  return {};
}

std::string default_assets_folder() {
  if (const char* set = std::getenv("TIE_ASSETS"); set != nullptr && set[0] == '/') return set;
  std::error_code ignored;
  if (fs::is_directory("/var/lib/tie/assets", ignored)) return "/var/lib/tie/assets";
  const char* home = std::getenv("HOME");
  return std::string(home != nullptr ? home : "/root") + "/.local/share/tie/assets";
}

bool is_model_name(std::string_view name) {
  auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  };
  return !name.empty() && name.size() <= 48 && name[0] != '.' && std::all_of(name.begin(), name.end(), fits);
}

Result<std::vector<std::string>> served_models(const NodeConfig& config) {
  std::string assets = config.assets.empty() ? default_assets_folder() : config.assets;
  std::error_code error;
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(assets + "/models", error)) {
    std::string name = entry.path().filename();
    if (is_model_name(name) && is_complete_model(entry.path())) found.push_back(name);
  }
  std::sort(found.begin(), found.end());
  const char* how = "; add one with: tie model add FILE.gguf --name NAME";
  if (found.empty()) return fail(Code::kNotFound, "no model in " + assets + how);
  if (config.models.empty()) return found;
  for (const std::string& wanted : config.models)
    if (std::find(found.begin(), found.end(), wanted) == found.end())
      return fail(Code::kNotFound, "model '" + wanted + "' is not in " + assets + how);
  return config.models;
}

}  // namespace tie::launcher
