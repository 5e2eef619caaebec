// The GPU's entry points: one for each row of kernel_list.h. Compiled by nvcc alone into a fat binary that the back end
// loads through the driver (../../cuda_backend).
#include "inference/bones/kernels/cuda/kernel_list.h"

namespace tie::bones::cuda {

#define TIE_ENTRY(name, Args, threads, ...)                                                      \
  extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Args args) { \
    Block block;                                                                                 \
    __VA_ARGS__(block, args);                                                                    \
  }
TIE_CUDA_KERNELS(TIE_ENTRY)

}  // namespace tie::bones::cuda
