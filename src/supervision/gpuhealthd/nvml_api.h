// The part of NVIDIA's management library that gpuhealthd calls, declared here so that neither its header nor the
// library is needed to build or start. Source: the public NVML API reference. Opened at run time; a function that an
// older driver lacks stays null and its measurement is left out. Threads: the poller's one.
#pragma once
#include <string>

#include "base/result.h"

namespace tie::gpuhealth::nvml {

using Device = void*;
using EventSet = void*;
using Return = int;

inline constexpr Return kSuccess = 0;
inline constexpr Return kNotSupported = 3;
inline constexpr Return kDriverNotLoaded = 9;
inline constexpr Return kTimeout = 10;
inline constexpr Return kLibraryNotFound = 12;
inline constexpr Return kGpuIsLost = 15;
inline constexpr Return kResetRequired = 16;

inline constexpr int kTemperatureGpu = 0;
inline constexpr int kThresholdShutdown = 0;
inline constexpr int kThresholdSlowdown = 1;
inline constexpr int kEccUncorrected = 1;
inline constexpr int kEccVolatile = 0;
inline constexpr unsigned kMaxLinks = 18;
inline constexpr unsigned long long kEventXid = 8;
inline constexpr unsigned kNameBytes = 96;

struct Memory {
  unsigned long long total, free, used;
};
struct EventData {
  Device device;
  unsigned long long type;
  unsigned long long data;  // the XID
  unsigned gpu_instance;
  unsigned compute_instance;
};

struct Api {
  Return (*init)() = nullptr;
  Return (*shutdown)() = nullptr;
  const char* (*error_string)(Return) = nullptr;
  Return (*device_count)(unsigned*) = nullptr;
  Return (*device_by_index)(unsigned, Device*) = nullptr;
  Return (*device_name)(Device, char*, unsigned) = nullptr;
  Return (*temperature)(Device, int, unsigned*) = nullptr;
  Return (*temperature_threshold)(Device, int, unsigned*) = nullptr;
  Return (*memory)(Device, Memory*) = nullptr;
  Return (*ecc_errors)(Device, int, int, unsigned long long*) = nullptr;
  Return (*retired_pages_pending)(Device, int*) = nullptr;
  Return (*remapped_rows)(Device, unsigned*, unsigned*, unsigned*, unsigned*) = nullptr;
  Return (*nvlink_state)(Device, unsigned, int*) = nullptr;
  Return (*clock_event_reasons)(Device, unsigned long long*) = nullptr;
  Return (*event_set_create)(EventSet*) = nullptr;
  Return (*register_events)(Device, unsigned long long, EventSet) = nullptr;
  Return (*event_set_wait)(EventSet, EventData*, unsigned) = nullptr;
  Return (*event_set_free)(EventSet) = nullptr;

  std::string describe(Return code) const;
};

// kNotFound: no such library; kUnsupportedFeature: it lacks what every driver of the last ten years has. The library
// stays open for the life of the process.
Result<Api> open(const std::string& library);

}  // namespace tie::gpuhealth::nvml
