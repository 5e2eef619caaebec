#include "supervision/gpuhealthd/cpu_provider.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace tie::gpuhealth {
namespace {

class CpuProviderTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/tie-cpu-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    root_ = folder;
    write("proc/meminfo", "MemTotal:       1000000 kB\nMemFree: 1 kB\nMemAvailable:    500000 kB\n");
    write("proc/interrupts",
          "           CPU0       CPU1\nMCE:          1          2   Machine check exceptions\nMCP:        100        "
          "200   Machine check polls\n");
    write("proc/pressure/memory",
          "some avg10=99.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
    write("sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count", "7\n");
    write("sys/devices/system/edac/mc/mc0/ue_count", "3\n");
    write("sys/class/thermal/thermal_zone0/temp", "45000\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + "/" + name).parent_path());
    std::ofstream(root_ + "/" + name) << text;
  }
  DeviceVerdict poll(DeviceProvider& provider) { return provider.poll().value().at(0); }
  std::unique_ptr<DeviceProvider> make() { return make_cpu_provider(root_ + "/proc", root_ + "/sys"); }
  std::string root_;
};

TEST_F(CpuProviderTest, ReadsTheMachineAndCallsItByItsName) {
  auto provider = make();
  DeviceVerdict verdict = poll(*provider);
  EXPECT_STREQ(provider->name(), "cpu");
  EXPECT_EQ(verdict.name, "CPU");
  EXPECT_EQ(verdict.health, Health::kHealthy) << verdict.reason;
  EXPECT_EQ(verdict.temperature_c, 45u);
  EXPECT_EQ(verdict.memory_total_bytes, 1000000u * 1024);
  EXPECT_EQ(verdict.memory_used_bytes, 500000u * 1024);
}

TEST_F(CpuProviderTest, OnlyNewErrorsCount) {
  auto provider = make();
  EXPECT_EQ(poll(*provider).health, Health::kHealthy) << "old machine checks and errors are history";
  write("proc/interrupts", "MCE:          1          3   Machine check exceptions\n");
  EXPECT_EQ(poll(*provider).health, Health::kDegraded);
  write("sys/devices/system/edac/mc/mc0/ue_count", "4\n");
  EXPECT_EQ(poll(*provider).health, Health::kUnavailable);
}

TEST_F(CpuProviderTest, LastingThrottlingDegradesAndEnds) {
  auto provider = make();
  for (int i = 0; i < 5; ++i) {
    write("sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count", std::to_string(8 + i));
    EXPECT_EQ(poll(*provider).health, i < 4 ? Health::kHealthy : Health::kDegraded) << i;
  }
  for (int i = 0; i < 10; ++i) (void)provider->poll();
  EXPECT_EQ(poll(*provider).health, Health::kHealthy);
}

TEST_F(CpuProviderTest, MemoryPressureShows) {
  auto provider = make();
  write("proc/pressure/memory", "some avg10=99.00\nfull avg10=75.50 avg60=0.00\n");
  EXPECT_EQ(poll(*provider).health, Health::kDegraded);
  write("proc/pressure/memory", "");
  write("proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 5000 kB\n");
  EXPECT_EQ(poll(*provider).health, Health::kUnavailable);
}

TEST_F(CpuProviderTest, AMachineThatTellsNothingStillHasMemory) {
  std::filesystem::remove_all(root_);
  auto provider = make();
  DeviceVerdict verdict = poll(*provider);
  EXPECT_EQ(verdict.health, Health::kHealthy) << verdict.reason;
  EXPECT_GT(verdict.memory_total_bytes, 0u);
}

TEST_F(CpuProviderTest, GarbageIsNotANumber) {
  write("proc/meminfo", "MemTotal: x\nMemAvailable: 99999999999999999999999\n");
  write("proc/interrupts", "MCE: 99999999999999999999999999 x");
  write("proc/pressure/memory", "full avg10=abc");
  auto provider = make();
  EXPECT_EQ(poll(*provider).health, Health::kHealthy);
}

}  // namespace
}  // namespace tie::gpuhealth
