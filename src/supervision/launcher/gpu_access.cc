#include "supervision/launcher/gpu_access.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "supervision/launcher/asset_record.h"

namespace tie::launcher {
namespace {

namespace fs = std::filesystem;

constexpr int kMostGpus = 32;
constexpr int64_t kMostRanks = 64;  // as the owner's

toml::table record_of(const std::string& assets, const std::string& model) {
  return asset_record(assets + "/models/" + model);
}

bool wishes_gpu(const toml::table& record) {
  const std::string device = record["device"].value_or(std::string("cpu"));
  return device == "cuda" || device == "auto";
}

void add_if_there(const std::string& path, std::vector<std::string>& out) {
  std::error_code ignored;
  if (fs::exists(path, ignored)) out.push_back(path);
}

}  // namespace

bool model_wishes_gpu(const std::string& assets, const std::string& model) {
  return wishes_gpu(record_of(assets, model));
}

uint32_t gpus_of_model(const std::string& assets, const std::string& model) {
  const toml::table record = record_of(assets, model);
  if (!wishes_gpu(record)) return 0;
  int64_t gpus = 1;
  for (const char* name : {"ranks", "stages"})
    gpus *= std::clamp(record[name].value_or(int64_t{1}), int64_t{1}, kMostRanks);
  return static_cast<uint32_t>(gpus);
}

std::vector<std::string> nodes_of_first_gpus(const std::vector<std::string>& nodes, uint32_t gpus) {
  std::vector<std::string> out;
  for (const std::string& node : nodes) {
    const std::string name = fs::path(node).filename().string();
    const std::string number = name.substr(std::min(name.size(), std::string_view("nvidia").size()));
    const bool of_one_gpu = !number.empty() && number.find_first_not_of("0123456789") == std::string::npos;
    if (!of_one_gpu || std::stoul(number) < gpus) out.push_back(node);
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

std::vector<std::string> gpu_driver_libraries() {
  std::vector<std::string> out;
  for (const char* name : {"libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2", "libnvidia-ptxjitcompiler.so.1",
                           "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"})
    for (const char* folder :
         {"/lib/x86_64-linux-gnu/", "/usr/lib/x86_64-linux-gnu/", "/lib/aarch64-linux-gnu/", "/usr/lib64/"}) {
      const size_t before = out.size();
      add_if_there(std::string(folder) + name, out);
      if (out.size() != before) break;
    }
  return out;
}

void allow_gpu(const std::vector<std::string>& nodes, os::SandboxProfile& profile) {
  for (const std::string& node : nodes) profile.binds.push_back({.path = node, .device = true});
  profile.proc = true;  // the driver asks /proc/driver/nvidia
  profile.syscalls = profile.syscalls == os::SyscallPolicy::kContainer ? os::SyscallPolicy::kGpuContainer
                                                                       : os::SyscallPolicy::kGpuDaemon;
}

}  // namespace tie::launcher
