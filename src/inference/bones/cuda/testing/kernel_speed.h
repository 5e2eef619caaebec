// Single kernels on this GPU, the portable ones and those of its own units: whether they agree, and how fast they are:
// products and prefill attention at the sizes of an 8B model, products of one row over matrices larger than any cache.
// For device_check.
#pragma once
#include <span>
#include <vector>

#include "inference/bones/cuda/driver.h"
#include "inference/bones/cuda/testing/check_cases.h"

namespace tie::bones::cuda {

// Each case: {"kernels": [{"kernel", "units", "tflop_s" or "gb_s"}...]}; `copy` is the memory's own speed. `quick`:
// small sizes, for the emulated driver.
std::vector<CheckCase> speed_of_kernels(std::shared_ptr<Driver> driver, std::span<const std::byte> kernels, bool quick);

// Every kernel of the GPU's own units against its twin. "ok": there are none, or all agree.
std::vector<CheckCase> units_of_gpu(std::shared_ptr<Driver> driver, std::span<const std::byte> kernels);

}  // namespace tie::bones::cuda
