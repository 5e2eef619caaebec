#include "supervision/gpuhealthd/classify.h"

#include <fmt/core.h>

namespace tie::gpuhealth {
namespace {

// Keeps the worst verdict and, among equals, the first reason.
void worsen(Verdict& verdict, Health health, std::string reason) {
  if (health <= verdict.health) return;
  verdict = {health, std::move(reason)};
}

void judge_temperature(const GpuSample& s, Verdict& verdict) {
  if (!s.temperature_c) return;
  uint32_t slowdown = s.slowdown_c.value_or(kDefaultSlowdownC);
  if (s.shutdown_c && *s.temperature_c + kTemperatureMarginC >= *s.shutdown_c) {
    worsen(verdict, Health::kUnavailable,
           fmt::format("{} C is at the shutdown point of {} C", *s.temperature_c, *s.shutdown_c));
  } else if (*s.temperature_c + kTemperatureMarginC >= slowdown) {
    worsen(verdict, Health::kDegraded,
           fmt::format("{} C is at the slowdown point of {} C", *s.temperature_c, slowdown));
  }
}

void judge_memory_cells(const GpuSample& s, Verdict& verdict) {
  if (s.row_remap_failed) worsen(verdict, Health::kUnavailable, "remapping a faulty memory row failed");
  if (s.uncorrected_ecc_errors > 0)
    worsen(verdict, Health::kUnavailable, fmt::format("{} uncorrected ECC errors", s.uncorrected_ecc_errors));
  if (s.row_remap_pending) worsen(verdict, Health::kDegraded, "a memory row waits for a reset to be remapped");
  if (s.retired_pages_pending) worsen(verdict, Health::kDegraded, "memory pages wait for a reset to be retired");
}

void judge_clocks(const GpuSample& s, Verdict& verdict) {
  if (s.clock_event_reasons & kReasonHwPowerBrake)
    worsen(verdict, Health::kDegraded, "the external power brake is asserted");
  if (s.clock_event_reasons & kReasonHwThermal) worsen(verdict, Health::kDegraded, "the hardware slows down for heat");
  if (s.clock_event_reasons & kReasonHwSlowdown) worsen(verdict, Health::kDegraded, "the hardware slowdown is engaged");
}

}  // namespace

const char* health_name(Health health) {
  switch (health) {
    case Health::kHealthy:
      return "healthy";
    case Health::kDegraded:
      return "degraded";
    case Health::kUnavailable:
      return "unavailable";
  }
  return "unavailable";
}

std::optional<Health> xid_health(uint64_t xid) {
  switch (xid) {
    case 13:
    case 31:
    case 43:
    case 45:
    case 68:
    case 109:
      return std::nullopt;
    case 63:
    case 74:
    case 92:
    case 94:
      return Health::kDegraded;  // rows to remap, NVLink, many corrected errors, contained error
    default:
      return Health::kUnavailable;
  }
}

Verdict classify_gpu(const GpuSample& sample) {
  if (!sample.lost_reason.empty()) return {Health::kUnavailable, sample.lost_reason};
  Verdict verdict;
  judge_memory_cells(sample, verdict);
  for (uint64_t xid : sample.xids)
    if (auto health = xid_health(xid)) worsen(verdict, *health, fmt::format("the driver reported XID {}", xid));
  judge_temperature(sample, verdict);
  judge_clocks(sample, verdict);
  if (sample.nvlinks_down > 0)
    worsen(verdict, Health::kDegraded, fmt::format("{} NVLink(s) are down", sample.nvlinks_down));
  return verdict;
}

Verdict classify_cpu(const CpuSample& sample) {
  Verdict verdict;
  if (sample.uncorrected_memory_errors > 0)
    worsen(verdict, Health::kUnavailable,
           fmt::format("{} uncorrected memory errors", sample.uncorrected_memory_errors));
  if (sample.memory_total_bytes > 0) {
    double share = static_cast<double>(sample.memory_available_bytes) / static_cast<double>(sample.memory_total_bytes);
    std::string reason = fmt::format("{:.1f} % of memory is available", share * 100);
    if (share < kUnavailableAvailableShare) worsen(verdict, Health::kUnavailable, reason);
    if (share < kDegradedAvailableShare) worsen(verdict, Health::kDegraded, reason);
  }
  if (sample.machine_checks > 0)
    worsen(verdict, Health::kDegraded, fmt::format("{} machine check exceptions", sample.machine_checks));
  if (sample.memory_full_stall_percent > kDegradedStallPercent)
    worsen(verdict, Health::kDegraded,
           fmt::format("tasks wait for memory {:.0f} % of the time", sample.memory_full_stall_percent));
  if (sample.throttled_polls_of_10 >= kDegradedThrottledPolls)
    worsen(verdict, Health::kDegraded, "the processor throttles for heat");
  return verdict;
}

}  // namespace tie::gpuhealth
