// Chooses a kernel set by what the CPU and the operating system support.
#pragma once
#include <string_view>
#include <vector>

#include "base/result.h"
#include "inference/bones/kernels/kernel_set.h"

namespace tie::bones {

// Sets that this CPU can run, fastest first; the reference set is always last.
std::vector<const KernelSet*> runnable_kernel_sets();

// The plain set that gives the same bits.
const KernelSet& twin_of(const KernelSet& set);

// By name; empty = the fastest. kUnsupportedFeature when unknown or not runnable here. Also "reference_fp16" and
// "amx_emulated", which are never the fastest.
Result<const KernelSet*> choose_kernel_set(std::string_view name);

}  // namespace tie::bones
