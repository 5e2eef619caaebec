#include "supervision/launcher/gpu_access.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <system_error>

#include "supervision/launcher/asset_record.h"

namespace tie::launcher {
namespace {

namespace fs = std::filesystem;

constexpr int kMostGpus = 32;
constexpr int64_t kMostRanks = 64;  // as the owner's

constexpr const char* kNccl = "libnccl.so.2";
constexpr const char* kDriverLibraries[] = {"libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1",
                                            kNccl};
constexpr const char* kLibraryParts[] = {"libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"};
constexpr const char* kSystemFolders[] = {"/lib/x86_64-linux-gnu/", "/usr/lib/x86_64-linux-gnu/",
                                          "/lib/aarch64-linux-gnu/", "/usr/lib64/"};
// Below another root, and the root itself: a folder of libraries alone, as some systems have for a driver.
constexpr const char* kDriverFolders[] = {"/",
                                          "/lib/",
                                          "/lib64/",
                                          "/lib/x86_64-linux-gnu/",
                                          "/usr/lib/x86_64-linux-gnu/",
                                          "/lib/aarch64-linux-gnu/",
                                          "/usr/lib/",
                                          "/usr/lib64/"};

toml::table record_of(const std::string& assets, const std::string& model) {
  return asset_record(assets + "/models/" + model);
}

bool wishes_gpu(const toml::table& record) {
  const std::string device = record["device"].value_or(std::string("cpu"));
  return device == "cuda" || device == "auto";
}

bool add_if_there(const std::string& path, std::vector<std::string>& out) {
  std::error_code ignored;
  const bool there = fs::exists(path, ignored);
  if (there) out.push_back(path);
  return there;
}

// From the first of the folders that has it.
bool add_library(std::span<const char* const> folders, const std::string& root, const char* name,
                 std::vector<std::string>& out) {
  for (const char* folder : folders)
    if (add_if_there(root + folder + name, out)) return true;
  return false;
}

// Of one GPU's node; none for the others.
std::optional<uint32_t> number_of(const std::string& node) {
  const std::string name = fs::path(node).filename().string();
  const std::string number = name.substr(std::min(name.size(), std::string_view("nvidia").size()));
  if (number.empty() || number.size() > 3 || number.find_first_not_of("0123456789") != std::string::npos) return {};
  return static_cast<uint32_t>(std::stoul(number));
}

}  // namespace

bool model_wishes_gpu(const std::string& assets, const std::string& model) {
  return wishes_gpu(record_of(assets, model));
}

std::vector<uint32_t> gpu_numbers(const std::vector<std::string>& nodes) {
  std::vector<uint32_t> out;
  for (const std::string& node : nodes)
    if (const auto number = number_of(node)) out.push_back(*number);
  std::ranges::sort(out);
  return out;
}

std::vector<uint32_t> gpus_of_model(const std::string& assets, const std::string& model,
                                    const std::vector<uint32_t>& here) {
  const toml::table record = record_of(assets, model);
  if (!wishes_gpu(record)) return {};
  std::vector<uint32_t> out;
  if (record.contains("gpus")) {
    const toml::array* named = record["gpus"].as_array();
    if (named == nullptr) return {};
    for (const toml::node& item : *named) {
      const int64_t number = item.value_exact<int64_t>().value_or(-1);
      if (number < 0 || number >= kMostGpus) return {};
      out.push_back(static_cast<uint32_t>(number));
    }
    return out;
  }
  int64_t gpus = 1;
  for (const char* name : {"ranks", "stages"})
    gpus *= std::clamp(record[name].value_or(int64_t{1}), int64_t{1}, kMostRanks);
  out.assign(here.begin(), here.begin() + static_cast<int64_t>(std::min<uint64_t>(gpus, here.size())));
  return out;
}

std::vector<std::string> nodes_of_gpus(const std::vector<std::string>& nodes, const std::vector<uint32_t>& gpus) {
  std::vector<std::string> out;
  for (const std::string& node : nodes) {
    const auto number = number_of(node);
    if (!number || std::ranges::find(gpus, *number) != gpus.end()) out.push_back(node);
  }
  return out;
}

void allow_gpu_ranks(os::SandboxProfile& profile) {
  profile.syscalls = os::SyscallPolicy::kGpuRanksContainer;
  profile.tmpfs.push_back("/dev/shm");
}

std::vector<std::string> gpu_device_nodes(const std::string& dev) {
  std::vector<std::string> out;
  add_if_there(dev + "/nvidiactl", out);
  if (out.empty()) return out;
  for (int i = 0; i < kMostGpus; ++i) add_if_there(dev + "/nvidia" + std::to_string(i), out);
  add_if_there(dev + "/nvidia-uvm", out);
  return out;
}

Result<GpuDriver> find_gpu_driver(const std::string& root) {
  GpuDriver out;
  if (root.empty()) {
    out.nodes = gpu_device_nodes();
    for (const char* name : kDriverLibraries) add_library(kSystemFolders, "", name, out.libraries);
  } else {
    if (!add_library(kDriverFolders, root, kDriverLibraries[0], out.libraries))
      return fail(Code::kNotFound, "gpu_driver_root: there is no " + std::string(kDriverLibraries[0]) + " in " + root +
                                       " or its lib, lib64, usr/lib and usr/lib64");
    for (const char* name : std::span(kDriverLibraries).subspan(1))
      if (!add_library(kDriverFolders, root, name, out.libraries) && name == kNccl)
        add_library(kSystemFolders, "", name, out.libraries);  // it is no part of a driver
    out.nodes = gpu_device_nodes(root + "/dev");
    if (out.nodes.empty()) out.nodes = gpu_device_nodes();
  }
  for (const char* name : kLibraryParts) add_library(kSystemFolders, "", name, out.libraries);
  return out;
}

void allow_gpu(const std::vector<std::string>& nodes, os::SandboxProfile& profile) {
  for (const std::string& node : nodes)
    profile.binds.push_back({.path = node, .at = "/dev/" + fs::path(node).filename().string(), .device = true});
  profile.proc = true;  // the driver asks /proc/driver/nvidia
  profile.syscalls = profile.syscalls == os::SyscallPolicy::kContainer ? os::SyscallPolicy::kGpuContainer
                                                                       : os::SyscallPolicy::kGpuDaemon;
}

}  // namespace tie::launcher
