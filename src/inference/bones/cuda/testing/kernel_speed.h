// How fast single kernels are on this GPU, the portable ones and those of its own units: products of many rows and
// prefill attention at the sizes of an 8B model. For device_check.
#pragma once
#include <nlohmann/json.hpp>
#include <span>

#include "inference/bones/cuda/driver.h"

namespace tie::bones::cuda {

// {"ok", "report", "cases": [{"kernel", "units", "tflop_s"}...]}; `quick`: small sizes, for the emulated driver.
Result<nlohmann::json> kernel_speed(std::shared_ptr<Driver> driver, std::span<const std::byte> kernels, bool quick);

// Every kernel of the GPU's own units against its twin. "ok": there are none, or all agree.
Result<nlohmann::json> check_units(std::shared_ptr<Driver> driver, std::span<const std::byte> kernels);

}  // namespace tie::bones::cuda
