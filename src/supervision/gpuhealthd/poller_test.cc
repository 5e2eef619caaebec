#include "supervision/gpuhealthd/poller.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "supervision/gpuhealthd/health_service.h"
#include "supervision/rpc/unix_grpc.h"

namespace tie::gpuhealth {
namespace {

struct Script {
  std::atomic<Health> health{Health::kHealthy};
  std::atomic<int> hang_ms{0};
  std::atomic<bool> fails{false};
};

class Scripted final : public DeviceProvider {
 public:
  explicit Scripted(std::shared_ptr<Script> script) : script_(std::move(script)) {}
  const char* name() const override { return "scripted"; }
  Result<std::vector<DeviceVerdict>> poll() override {
    std::this_thread::sleep_for(std::chrono::milliseconds(script_->hang_ms.load()));
    if (script_->fails) return fail(Code::kIo, "the driver does not answer");
    return std::vector<DeviceVerdict>{{.name = "one", .health = Health::kHealthy},
                                      {.name = "two", .health = script_->health, .reason = "because"}};
  }

 private:
  std::shared_ptr<Script> script_;
};

class PollerTest : public testing::Test {
 protected:
  std::shared_ptr<Script> script_ = std::make_shared<Script>();
  Poller poller_{std::make_shared<Scripted>(script_), {.interval_ms = 10, .hang_ms = 150}};
  bool becomes(Health health, int64_t limit_ms = 3'000) {
    Deadline deadline = Deadline::in_ms(limit_ms);
    while (!deadline.passed()) {
      if (poller_.verdict().health == health) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
};

TEST_F(PollerTest, TheWorstDeviceIsTheVerdict) {
  poller_.wait_first(Deadline::in_ms(30'000));
  EXPECT_EQ(poller_.verdict().health, Health::kHealthy);
  script_->health = Health::kDegraded;
  EXPECT_TRUE(becomes(Health::kDegraded));
}

TEST_F(PollerTest, AHungDriverIsUnavailableAndHealsWhenItAnswers) {
  ASSERT_TRUE(becomes(Health::kHealthy));
  script_->hang_ms = 600;
  ASSERT_TRUE(becomes(Health::kUnavailable));
  EXPECT_EQ(poller_.verdict().devices.at(0).reason, "the device query hangs");
  script_->hang_ms = 0;
  EXPECT_TRUE(becomes(Health::kHealthy));
}

TEST_F(PollerTest, ADriverThatFailsIsUnavailableWithItsReason) {
  ASSERT_TRUE(becomes(Health::kHealthy));
  script_->fails = true;
  ASSERT_TRUE(becomes(Health::kUnavailable));
  EXPECT_EQ(poller_.verdict().devices.at(0).reason, "the driver does not answer");
}

TEST_F(PollerTest, StopDoesNotWaitForAHungDriver) {
  ASSERT_TRUE(becomes(Health::kHealthy));
  script_->hang_ms = 5'000;
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  int64_t start = monotonic_ms();
  poller_.stop();
  EXPECT_LT(monotonic_ms() - start, 1'000);
  script_->hang_ms = 0;
}

TEST_F(PollerTest, WatchersHearTheFirstVerdictEachChangeAndAHeartbeat) {
  ASSERT_TRUE(becomes(Health::kHealthy));
  std::string path = "/tmp/tie-gpuhealth-test-" + std::to_string(::getpid()) + ".sock";
  HealthService service(poller_);
  auto server = rpc::UnixGrpcServer::start(path, {&service});
  ASSERT_TRUE(server) << server.error().message;
  auto channel = rpc::connect(path, Deadline::in_ms(1'000));
  ASSERT_TRUE(channel) << channel.error().message;
  auto stub = v1::GpuHealth::NewStub(*channel);
  grpc::ClientContext context;
  context.set_deadline(rpc::call_deadline(10'000));
  auto reader = stub->WatchVerdict(&context, {});
  v1::GpuVerdict verdict;
  ASSERT_TRUE(reader->Read(&verdict));
  EXPECT_EQ(verdict.health(), v1::HEALTHY);
  EXPECT_EQ(verdict.provider(), "scripted");
  ASSERT_EQ(verdict.devices_size(), 2);
  script_->health = Health::kUnavailable;
  int64_t start = monotonic_ms();
  do ASSERT_TRUE(reader->Read(&verdict));
  while (verdict.health() == v1::HEALTHY);
  EXPECT_LT(monotonic_ms() - start, 800);
  ASSERT_TRUE(reader->Read(&verdict)) << "the heartbeat";
  context.TryCancel();
  server->stop(Deadline::in_ms(1'000));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace tie::gpuhealth
