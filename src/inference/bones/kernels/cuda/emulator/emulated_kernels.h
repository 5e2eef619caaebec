// The kernels of kernel_list.h by name, to run on the emulator. For tests and the emulated driver.
#pragma once
#include <string_view>

#include "inference/bones/kernels/cuda/emulator/block_emulator.h"

namespace tie::bones::cuda {

struct EmulatedKernel {
  const char* name;
  uint32_t threads;  // of a block
  size_t args_bytes;
  void (*body)(EmulatedBlock& block, const void* args);
};

// nullptr: there is no such kernel.
const EmulatedKernel* find_emulated_kernel(std::string_view name);

}  // namespace tie::bones::cuda
