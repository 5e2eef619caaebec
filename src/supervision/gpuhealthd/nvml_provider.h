// GPUs through NVML. A lost device or a failed driver is a verdict, not an error; after one the library is initialised
// anew at the next poll.
#pragma once
#include <string>

#include "supervision/gpuhealthd/device.h"

namespace tie::gpuhealth {

// kNotFound: this machine has no GPU that NVML knows (no library, no driver, no device): use the CPU provider.
// Every other failure gives a provider, since a GPU that does not answer is unavailable, not absent.
Result<std::unique_ptr<DeviceProvider>> make_nvml_provider(const std::string& library = "libnvidia-ml.so.1");

}  // namespace tie::gpuhealth
