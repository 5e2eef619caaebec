// The GPU's entry points: one for each row of kernel_list.h, and of tensor_core/tensor_core_list.h for the GPU that has
// the units (elsewhere those are empty and never launched: cuda/fast_kernels.h). Compiled by nvcc alone into a fat binary
// that the back end loads through the driver (../../cuda).
#include "inference/bones/kernels/cuda/tensor_core/ptx.h"
#include "inference/bones/kernels/cuda/tensor_core/tensor_core_list.h"

namespace tie::bones::cuda {

#define TIE_ENTRY(name, Args, threads, ...)                                                      \
  extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Args args) { \
    Block block;                                                                                 \
    __VA_ARGS__(block, args);                                                                    \
  }
#define TIE_UNIT_ENTRY(name, Args, threads, ...)                                                    \
  extern "C" __global__ void __launch_bounds__(threads, 1) name(const __grid_constant__ Args args) { \
    AsyncBlock block;                                                                               \
    __VA_ARGS__(block, args);                                                                       \
  }
#define TIE_EMPTY_ENTRY(name, Args, threads, ...) \
  extern "C" __global__ void __launch_bounds__(threads, 1) name(const __grid_constant__ Args) {}

TIE_CUDA_KERNELS(TIE_ENTRY)
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
TIE_HOPPER_KERNELS(TIE_UNIT_ENTRY)
#else
TIE_HOPPER_KERNELS(TIE_EMPTY_ENTRY)
#endif
#ifdef __CUDA_ARCH_FEAT_SM100_ALL
TIE_BLACKWELL_KERNELS(TIE_UNIT_ENTRY)
#else
TIE_BLACKWELL_KERNELS(TIE_EMPTY_ENTRY)
#endif

}  // namespace tie::bones::cuda
