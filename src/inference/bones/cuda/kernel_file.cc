#include "inference/bones/cuda/kernel_file.h"

#include <filesystem>

#include "os/fd.h"

namespace tie::bones::cuda {
namespace {

constexpr size_t kMaxKernelBytes = size_t{256} << 20;

std::string installed_kernels() {
  std::error_code ignored;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return (self.parent_path().parent_path().parent_path() / "lib/tie/tie_kernels.fatbin").string();
}

}  // namespace

Result<Bytes> read_gpu_kernels(const std::string& given) {
  auto bytes = os::read_file(given.empty() ? installed_kernels() : given, kMaxKernelBytes);
  if (bytes) return bytes;
  return std::unexpected(std::move(bytes.error())
                             .context("the model lies on the GPU, but its kernels cannot be read (install a build with "
                                      "GPU kernels, or set device = \"cpu\" in model.toml)"));
}

}  // namespace tie::bones::cuda
