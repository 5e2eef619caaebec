// The device verdict of a machine without a GPU: memory pressure, thermal throttling, machine checks, memory errors of
// the processor it computes on. A measurement that this machine or sandbox does not offer is left out; memory is always
// known (sysinfo).
#pragma once
#include <string>

#include "supervision/gpuhealthd/device.h"

namespace tie::gpuhealth {

// `proc` and `sys` are the roots of the two file systems (tests give folders of their own).
std::unique_ptr<DeviceProvider> make_cpu_provider(std::string proc = "/proc", std::string sys = "/sys");

}  // namespace tie::gpuhealth
