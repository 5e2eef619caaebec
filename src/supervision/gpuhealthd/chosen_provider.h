// Chooses NVML or the CPU at the first poll rather than at start, so that a driver that hangs in its initialisation
// shows as a hung poll.
#pragma once
#include <string>

#include "supervision/gpuhealthd/device.h"

namespace tie::gpuhealth {

// wanted: "auto" (NVML where there is a GPU, else the CPU), "nvml", "cpu".
std::unique_ptr<DeviceProvider> make_chosen_provider(std::string wanted, std::string nvml_library);

}  // namespace tie::gpuhealth
