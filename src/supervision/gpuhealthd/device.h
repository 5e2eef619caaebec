// What gpuhealthd knows of one device, and who tells it. Plain data; providers are called from the poller's one thread.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace tie::gpuhealth {

// Ordered: a larger value is worse. Numbers as in proto/gpuhealth.proto.
enum class Health : uint8_t { kHealthy = 1, kDegraded = 2, kUnavailable = 3 };
const char* health_name(Health health);

struct DeviceVerdict {
  std::string name;
  Health health = Health::kUnavailable;
  std::string reason;  // empty when healthy
  uint32_t temperature_c = 0;
  uint64_t memory_used_bytes = 0;
  uint64_t memory_total_bytes = 0;
};

class DeviceProvider {
 public:
  virtual ~DeviceProvider() = default;
  virtual const char* name() const = 0;  // "nvml" or "cpu"
  // One look at every device. May block for as long as a driver does. An error means that nothing can be said:
  // unavailable.
  virtual Result<std::vector<DeviceVerdict>> poll() = 0;
};

}  // namespace tie::gpuhealth
