#include "supervision/gpuhealthd/classify.h"

#include <gtest/gtest.h>

namespace tie::gpuhealth {
namespace {

TEST(ClassifyGpu, ACoolIdleDeviceIsHealthy) {
  GpuSample s;
  s.temperature_c = 45;
  EXPECT_EQ(classify_gpu(s).health, Health::kHealthy);
  EXPECT_EQ(classify_gpu(GpuSample{}).health, Health::kHealthy) << "nothing measured is not a fault";
}

TEST(ClassifyGpu, TemperatureIsJudgedAgainstTheDevicesOwnPoints) {
  GpuSample s;
  s.slowdown_c = 87;
  s.shutdown_c = 92;
  const std::pair<uint32_t, Health> cases[] = {{83, Health::kHealthy},
                                               {84, Health::kDegraded},
                                               {88, Health::kDegraded},
                                               {89, Health::kUnavailable},
                                               {120, Health::kUnavailable}};
  for (auto [temperature, health] : cases) {
    s.temperature_c = temperature;
    EXPECT_EQ(classify_gpu(s).health, health) << temperature;
  }
  s = {};
  s.temperature_c = kDefaultSlowdownC;
  EXPECT_EQ(classify_gpu(s).health, Health::kDegraded);
}

TEST(ClassifyGpu, EachFaultHasItsVerdictAndItsReason) {
  struct Case {
    const char* word;
    Health health;
    void (*set)(GpuSample&);
  };
  const Case cases[] = {
      {"ECC", Health::kUnavailable, [](GpuSample& s) { s.uncorrected_ecc_errors = 1; }},
      {"remapping", Health::kUnavailable, [](GpuSample& s) { s.row_remap_failed = true; }},
      {"remapped", Health::kDegraded, [](GpuSample& s) { s.row_remap_pending = true; }},
      {"retired", Health::kDegraded, [](GpuSample& s) { s.retired_pages_pending = true; }},
      {"NVLink", Health::kDegraded, [](GpuSample& s) { s.nvlinks_down = 2; }},
      {"power brake", Health::kDegraded, [](GpuSample& s) { s.clock_event_reasons = kReasonHwPowerBrake; }},
      {"heat", Health::kDegraded, [](GpuSample& s) { s.clock_event_reasons = kReasonHwThermal; }},
      {"slowdown", Health::kDegraded, [](GpuSample& s) { s.clock_event_reasons = kReasonHwSlowdown; }},
      {"XID 79", Health::kUnavailable, [](GpuSample& s) { s.xids = {79}; }},
      {"XID 63", Health::kDegraded, [](GpuSample& s) { s.xids = {63}; }},
      {"bus", Health::kUnavailable, [](GpuSample& s) { s.lost_reason = "fallen off the bus"; }},
  };
  for (const Case& c : cases) {
    GpuSample s;
    s.temperature_c = 40;
    c.set(s);
    Verdict verdict = classify_gpu(s);
    EXPECT_EQ(verdict.health, c.health) << c.word;
    EXPECT_NE(verdict.reason.find(c.word), std::string::npos) << verdict.reason;
  }
}

TEST(ClassifyGpu, HarmlessClockReasonsAndProgramFaultsAreNoFaultsOfTheDevice) {
  GpuSample s;
  s.clock_event_reasons = 0x1 | 0x2 | 0x4 | 0x100;  // idle, application clocks, software power cap, display clocks
  s.xids = {13, 31, 43, 45};
  EXPECT_EQ(classify_gpu(s).health, Health::kHealthy);
}

TEST(ClassifyGpu, TheWorstFaultDecides) {
  GpuSample s;
  s.retired_pages_pending = true;
  s.xids = {63, 48};
  EXPECT_EQ(classify_gpu(s).health, Health::kUnavailable);
  EXPECT_NE(classify_gpu(s).reason.find("48"), std::string::npos);
}

TEST(ClassifyCpu, MemoryIsJudgedByWhatIsAvailable) {
  CpuSample s;
  s.memory_total_bytes = 1000;
  const std::pair<uint64_t, Health> cases[] = {{500, Health::kHealthy},
                                               {30, Health::kHealthy},
                                               {29, Health::kDegraded},
                                               {10, Health::kDegraded},
                                               {9, Health::kUnavailable}};
  for (auto [available, health] : cases) {
    s.memory_available_bytes = available;
    EXPECT_EQ(classify_cpu(s).health, health) << available;
  }
  EXPECT_EQ(classify_cpu(CpuSample{}).health, Health::kHealthy);
}

TEST(ClassifyCpu, StallsThrottlingAndMachineErrors) {
  CpuSample s;
  s.memory_full_stall_percent = 51;
  EXPECT_EQ(classify_cpu(s).health, Health::kDegraded);
  s = {};
  s.throttled_polls_of_10 = 4;
  EXPECT_EQ(classify_cpu(s).health, Health::kHealthy);
  s.throttled_polls_of_10 = 5;
  EXPECT_EQ(classify_cpu(s).health, Health::kDegraded);
  s = {};
  s.machine_checks = 1;
  EXPECT_EQ(classify_cpu(s).health, Health::kDegraded);
  s.uncorrected_memory_errors = 1;
  EXPECT_EQ(classify_cpu(s).health, Health::kUnavailable);
}

}  // namespace
}  // namespace tie::gpuhealth
