// The NVML provider against a library that behaves as a file says.
#include "supervision/gpuhealthd/nvml_provider.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "supervision/gpuhealthd/chosen_provider.h"

namespace tie::gpuhealth {
namespace {

class NvmlTest : public testing::Test {
 protected:
  void SetUp() override {
    state_ = "/tmp/tie-fake-nvml-" + std::to_string(::getpid());
    ::setenv("TIE_FAKE_NVML_STATE", state_.c_str(), 1);
    set("");
  }
  void TearDown() override { std::filesystem::remove(state_); }
  void set(const std::string& text) { std::ofstream(state_) << text; }
  std::vector<DeviceVerdict> poll(DeviceProvider& provider) { return provider.poll().value(); }
  std::string state_;
};

TEST_F(NvmlTest, AHealthyMachineIsHealthy) {
  auto provider = make_nvml_provider(TIE_FAKE_NVML);
  ASSERT_TRUE(provider) << provider.error().message;
  auto devices = poll(**provider);
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[0].name, "GPU 0 Fake GPU");
  EXPECT_EQ(devices[0].health, Health::kHealthy) << devices[0].reason;
  EXPECT_EQ(devices[1].memory_used_bytes, 600u);
  EXPECT_EQ(devices[1].memory_total_bytes, 1000u);
  EXPECT_EQ(devices[0].temperature_c, 40u);
}

TEST_F(NvmlTest, EveryFaultIsSeenOnTheDeviceThatHasIt) {
  struct Case {
    const char* state;
    Health health;
    const char* word;
  };
  const Case cases[] = {
      {"temperature 88", Health::kDegraded, "slowdown point"},
      {"temperature 93", Health::kUnavailable, "shutdown point"},
      {"ecc 2", Health::kUnavailable, "ECC"},
      {"retired 1", Health::kDegraded, "retired"},
      {"remap_pending 1", Health::kDegraded, "remapped"},
      {"remap_failed 1", Health::kUnavailable, "remapping"},
      {"links_down 1", Health::kDegraded, "NVLink"},
      {"reasons 128", Health::kDegraded, "power brake"},
      {"reasons 64", Health::kDegraded, "heat"},
      {"xid 79", Health::kUnavailable, "XID 79"},
      {"xid 94", Health::kDegraded, "XID 94"},
      {"lost 1", Health::kUnavailable, "lost"},
      {"error 16", Health::kUnavailable, "reset"},
      {"error 999", Health::kUnavailable, "temperature"},
  };
  for (const Case& c : cases) {
    set("xid 0");
    auto provider = make_nvml_provider(TIE_FAKE_NVML);
    ASSERT_TRUE(provider);
    EXPECT_EQ(poll(**provider)[0].health, Health::kHealthy) << c.state;
    set(c.state);
    auto devices = poll(**provider);
    EXPECT_EQ(devices[0].health, c.health) << c.state;
    EXPECT_NE(devices[0].reason.find(c.word), std::string::npos) << c.state << ": " << devices[0].reason;
    bool only_the_first = !std::string_view(c.state).starts_with("error");
    EXPECT_EQ(devices[1].health, only_the_first ? Health::kHealthy : Health::kUnavailable) << c.state;
  }
}

TEST_F(NvmlTest, AnXidStaysAndAProgramsFaultDoesNotCount) {
  auto provider = make_nvml_provider(TIE_FAKE_NVML);
  ASSERT_TRUE(provider);
  set("xid 31");
  EXPECT_EQ(poll(**provider)[0].health, Health::kHealthy);
  set("xid 48");
  EXPECT_EQ(poll(**provider)[0].health, Health::kUnavailable);
  set("");
  EXPECT_EQ(poll(**provider)[0].health, Health::kUnavailable) << "a double-bit error does not heal by itself";
}

TEST_F(NvmlTest, ALostDeviceKeepsItsRowAndMayComeBack) {
  auto provider = make_nvml_provider(TIE_FAKE_NVML);
  ASSERT_TRUE(provider);
  set("lost 1");
  EXPECT_EQ(poll(**provider)[0].health, Health::kUnavailable);
  set("count 1");
  auto devices = poll(**provider);
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[1].health, Health::kUnavailable);
  EXPECT_EQ(devices[1].reason, "the device is missing");
  set("lost 1\ncount 1");
  (void)poll(**provider);
  set("");
  for (const DeviceVerdict& device : poll(**provider)) EXPECT_EQ(device.health, Health::kHealthy) << device.reason;
}

TEST_F(NvmlTest, WhatADriverDoesNotSupportIsLeftOut) {
  set("unsupported 1\necc 5\nretired 1");
  auto provider = make_nvml_provider(TIE_FAKE_NVML);
  ASSERT_TRUE(provider);
  EXPECT_EQ(poll(**provider)[0].health, Health::kHealthy);
}

TEST_F(NvmlTest, ADriverThatFailsIsAnErrorUntilItAnswers) {
  set("init 999");
  auto provider = make_nvml_provider(TIE_FAKE_NVML);
  ASSERT_TRUE(provider);
  EXPECT_FALSE((*provider)->poll());
  set("");
  EXPECT_TRUE((*provider)->poll());
}

TEST_F(NvmlTest, OnlyAMachineWithoutAGpuFallsBackToTheCpu) {
  for (const char* state : {"init 9", "count 0"}) {
    set(state);
    auto provider = make_chosen_provider("auto", TIE_FAKE_NVML);
    ASSERT_TRUE(provider->poll());
    EXPECT_STREQ(provider->name(), "cpu") << state;
  }
  set("init 999");
  auto broken = make_chosen_provider("auto", TIE_FAKE_NVML);
  EXPECT_FALSE(broken->poll());
  EXPECT_STREQ(broken->name(), "nvml");
  auto no_library = make_chosen_provider("auto", "/nonexistent/libnvidia-ml.so");
  ASSERT_TRUE(no_library->poll());
  EXPECT_STREQ(no_library->name(), "cpu");
  EXPECT_FALSE(make_chosen_provider("nvml", "/nonexistent/libnvidia-ml.so")->poll());
}

}  // namespace
}  // namespace tie::gpuhealth
