// The rules that turn measurements into a verdict. Pure functions, no clock, no device: every rule has a test.
// Source: NVIDIA's NVML reference (clock event reasons, row remapping, retired pages) and its XID catalogue; the
// kernel's documentation of PSI and EDAC.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "supervision/gpuhealthd/device.h"

namespace tie::gpuhealth {

struct Verdict {
  Health health = Health::kHealthy;
  std::string reason;
};

struct GpuSample {
  std::string lost_reason;  // not empty: the driver no longer reaches the device
  std::optional<uint32_t> temperature_c;
  std::optional<uint32_t> slowdown_c;  // where the device starts to throttle
  std::optional<uint32_t> shutdown_c;
  uint64_t uncorrected_ecc_errors = 0;  // since the driver was loaded
  bool retired_pages_pending = false;
  bool row_remap_pending = false;
  bool row_remap_failed = false;
  uint32_t nvlinks_down = 0;         // links that were up when the daemon started
  uint64_t clock_event_reasons = 0;  // NVML's bit set
  std::vector<uint64_t> xids;        // critical events since the daemon started
};

inline constexpr uint32_t kTemperatureMarginC = 3;  // this close to the slowdown point is degraded
inline constexpr uint32_t kDefaultSlowdownC = 90;   // devices that do not tell
inline constexpr uint64_t kReasonHwSlowdown = 0x08;
inline constexpr uint64_t kReasonHwThermal = 0x40;
inline constexpr uint64_t kReasonHwPowerBrake = 0x80;

Verdict classify_gpu(const GpuSample& sample);

// What one XID says about the device. nullopt: a fault of the program, not of the device.
std::optional<Health> xid_health(uint64_t xid);

struct CpuSample {
  uint64_t memory_total_bytes = 0;
  uint64_t memory_available_bytes = 0;
  double memory_full_stall_percent = 0;    // PSI "full avg10": time in which every task waited for memory
  uint32_t throttled_polls_of_10 = 0;      // among the last ten polls
  uint64_t machine_checks = 0;             // new ones since the daemon started
  uint64_t uncorrected_memory_errors = 0;  // likewise
};

inline constexpr double kDegradedAvailableShare = 0.03;
inline constexpr double kUnavailableAvailableShare = 0.01;
inline constexpr double kDegradedStallPercent = 50;
inline constexpr uint32_t kDegradedThrottledPolls = 5;

Verdict classify_cpu(const CpuSample& sample);

}  // namespace tie::gpuhealth
