#include "inference/bones/kernels/cuda/emulator/emulated_kernels.h"

#include "inference/bones/kernels/cuda/tensor_core/tensor_core_list.h"

namespace tie::bones::cuda {
namespace {

#define TIE_ROW(name, Args, threads, ...) \
  {#name, threads, sizeof(Args),          \
   [](EmulatedBlock& block, const void* args) { __VA_ARGS__(block, *static_cast<const Args*>(args)); }},
constexpr EmulatedKernel kKernels[] = {TIE_CUDA_KERNELS(TIE_ROW) TIE_HOPPER_KERNELS(TIE_ROW)
                                           TIE_BLACKWELL_KERNELS(TIE_ROW)};
#undef TIE_ROW

}  // namespace

const EmulatedKernel* find_emulated_kernel(std::string_view name) {
  for (const EmulatedKernel& kernel : kKernels)
    if (name == kernel.name) return &kernel;
  return nullptr;
}

}  // namespace tie::bones::cuda
