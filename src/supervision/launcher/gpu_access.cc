#include "supervision/launcher/gpu_access.h"

#include <toml++/toml.h>

#include <filesystem>
#include <system_error>

#include "os/fd.h"

namespace tie::launcher {
namespace {

namespace fs = std::filesystem;

constexpr int kMostGpus = 32;
constexpr size_t kMaxRecordBytes = 64 << 10;

void add_if_there(const std::string& path, std::vector<std::string>& out) {
  std::error_code ignored;
  if (fs::exists(path, ignored)) out.push_back(path);
}

}  // namespace

bool model_wishes_gpu(const std::string& assets, const std::string& model) {
  auto text = os::read_file(assets + "/models/" + model + "/model.toml", kMaxRecordBytes);
  if (!text) return false;
  try {
    const toml::table record = toml::parse(as_text(*text));
    const std::string device = record["device"].value_or(std::string("cpu"));
    return device == "cuda" || device == "auto";
  } catch (const toml::parse_error&) {
    return false;
  }
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
  for (const char* name : {"libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1", "libm.so.6",
                           "libdl.so.2", "libpthread.so.0", "librt.so.1"})
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
