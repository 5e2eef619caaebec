// The controller as a whole against fake peers: every one may be absent, restart, hang; the operator's calls.
#include "supervision/controllerd/testing/fake_peers.h"

namespace tie::controller {
namespace {

using testing::nap;
using testing::NodeTest;

TEST_F(NodeTest, PeersMayStartInAnyOrder) {
  const std::vector<std::function<void()>> starts = {[this] { start_cloudboard(); }, [this] { start_gpu(); },
                                                     [this] { start_probe(); }};
  for (size_t last = 0; last < 4; ++last) {
    start_node();
    for (size_t i = 0; i < starts.size(); ++i)
      if (i != last) starts[i]();
    if (last != 3) start_owner();
    nap(60);
    EXPECT_NE(node_->snapshot().phase(), Phase::kReady);
    if (last == 3) start_owner();
    if (last != 3) starts[last]();
    EXPECT_TRUE(becomes(Phase::kReady)) << last << ": " << node_->snapshot().reason();
    EXPECT_TRUE(eventually([&] { return cloudboard_.granted == 32; }));
    node_->stop();
    EXPECT_TRUE(eventually([&] { return cloudboard_.granted == 0; })) << "the registration ends with the controller";
    stop(cloudboard_server_);
    stop(gpu_server_);
    stop(probe_server_);
    owner_.reset();
  }
}

TEST_F(NodeTest, ARecycleByTheOperatorWaitsForRequestsInFlightAndReturnsWhenReady) {
  start_everything();
  auto stub = operator_stub();
  cloudboard_.in_flight = 2;
  std::thread finishing([&] {
    nap(200);
    EXPECT_EQ(probe_.recycles, 0) << "not while requests are in flight";
    EXPECT_EQ(cloudboard_.state, v1::BUSY);
    cloudboard_.in_flight = 0;
  });
  int prewarms = cloudboard_.prewarms;
  grpc::ClientContext context;
  context.set_deadline(rpc::call_deadline(15'000));
  v1::NodeStatus status;
  grpc::Status outcome = stub->Recycle(&context, {}, &status);
  finishing.join();
  ASSERT_TRUE(outcome.ok()) << outcome.error_message();
  EXPECT_EQ(status.state(), "ready");
  EXPECT_EQ(status.recycle_count(), 1u);
  EXPECT_EQ(probe_.recycles, 1);
  EXPECT_EQ(probe_.instance, 2);
  EXPECT_GT(cloudboard_.prewarms, prewarms);
  EXPECT_TRUE(eventually([&] { return cloudboard_.granted == 32; }));
}

TEST_F(NodeTest, IdleRecyclesAreFast) {
  start_everything();
  auto stub = operator_stub();
  for (int i = 0; i < 5; ++i) {
    grpc::ClientContext context;
    v1::NodeStatus status;
    ASSERT_TRUE(stub->Recycle(&context, {}, &status).ok());
    // 80 ms of it are the fake container's.
    EXPECT_LT(status.last_recycle_ms(), 500u);
  }
}

TEST_F(NodeTest, DrainAndResume) {
  start_everything();
  auto stub = operator_stub();
  cloudboard_.in_flight = 1;
  {
    grpc::ClientContext context;
    v1::NodeDrainRequest request;
    request.set_wait_ms(50);
    v1::NodeStatus status;
    EXPECT_EQ(stub->Drain(&context, request, &status).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  EXPECT_EQ(cloudboard_.granted, 0u);
  cloudboard_.in_flight = 0;
  {
    grpc::ClientContext context;
    v1::NodeStatus status;
    EXPECT_TRUE(stub->Drain(&context, {}, &status).ok());
    EXPECT_TRUE(status.drained_by_operator());
    EXPECT_EQ(status.state(), "busy");
  }
  {
    grpc::ClientContext context;
    v1::NodeStatus status;
    EXPECT_TRUE(stub->Resume(&context, {}, &status).ok());
    EXPECT_EQ(status.state(), "ready");
  }
}

TEST_F(NodeTest, AResumeThatIsDrainedAgainSaysSoInsteadOfWaiting) {
  start_everything();
  auto stub = operator_stub();
  grpc::ClientContext drain_context, resume_context, again_context;
  v1::NodeStatus status, resumed_status;
  ASSERT_TRUE(stub->Drain(&drain_context, {}, &status).ok());
  stop(gpu_server_);  // so that the resume has something to wait for
  ASSERT_TRUE(becomes(Phase::kError));
  grpc::Status resumed;
  std::jthread resuming([&] { resumed = stub->Resume(&resume_context, {}, &resumed_status); });
  ASSERT_TRUE(eventually([&] { return !node_->snapshot().drained_by_operator(); }));
  EXPECT_TRUE(stub->Drain(&again_context, {}, &status).ok());
  resuming.join();
  EXPECT_EQ(resumed.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << resumed.error_message();
  EXPECT_NE(resumed.error_message().find("tie node drain"), std::string::npos) << resumed.error_message();
}

TEST_F(NodeTest, ADrainThatIsResumedIsNotCalledADrain) {
  start_everything();
  auto stub = operator_stub();
  cloudboard_.in_flight = 1;
  grpc::Status drained;
  std::jthread draining([&] {
    grpc::ClientContext context;
    v1::NodeStatus status;
    drained = stub->Drain(&context, {}, &status);
  });
  ASSERT_TRUE(becomes(Phase::kBusy));
  grpc::ClientContext context;
  v1::NodeStatus status;
  EXPECT_TRUE(stub->Resume(&context, {}, &status).ok());
  cloudboard_.in_flight = 0;
  draining.join();
  EXPECT_EQ(drained.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(drained.error_message().find("resume"), std::string::npos) << drained.error_message();
}

TEST_F(NodeTest, RegistersAnewWhenCloudboarddRestarts) {
  start_everything();
  stop(cloudboard_server_);
  ASSERT_TRUE(becomes(Phase::kInitializing));
  int before = cloudboard_.registrations;
  start_cloudboard();
  ASSERT_TRUE(becomes(Phase::kReady)) << node_->snapshot().reason();
  EXPECT_GT(cloudboard_.registrations, before);
  EXPECT_TRUE(eventually([&] { return cloudboard_.granted == 32; }));
}

TEST_F(NodeTest, AHungCloudboarddIsNoticedAndRegisteredWithAnew) {
  start_everything();
  cloudboard_.hangs = true;
  ASSERT_TRUE(becomes(Phase::kInitializing, 5'000));
  cloudboard_.hangs = false;
  EXPECT_TRUE(becomes(Phase::kReady)) << node_->snapshot().reason();
}

// As when somebody hoards connections to owner.sock.
TEST_F(NodeTest, AnOwnerThatGivesAConnectionsPlaceAwayIsNotCalledAbsent) {
  start_owner();
  owner_->displaces = true;
  std::atomic<int> ready{0}, absent{0};
  OwnerWatcher watcher(options_.owner_socket, {"m"}, options_.timing, [&](Event event) {
    const auto* report = std::get_if<OwnerReport>(&event);
    if (report != nullptr) ++(report->state == Owner::kReady ? ready : absent);
  });
  watcher.start();
  EXPECT_TRUE(eventually([&] { return ready >= 10; }));
  EXPECT_EQ(absent, 0);
  owner_.reset();
  EXPECT_TRUE(eventually([&] { return absent > 0; })) << "one that has gone is";
  watcher.stop();
  watcher.join();
}

TEST_F(NodeTest, ARestartOfGpuhealthdOrTheOwnerIsSurvivedAndTheirAbsenceIsAnError) {
  start_everything();
  stop(gpu_server_);
  nap(50);
  EXPECT_EQ(node_->snapshot().phase(), Phase::kReady);
  start_gpu();
  nap(50);
  EXPECT_EQ(node_->snapshot().phase(), Phase::kReady);
  stop(gpu_server_);
  ASSERT_TRUE(becomes(Phase::kError));
  start_gpu();
  ASSERT_TRUE(becomes(Phase::kReady));
  owner_.reset();
  ASSERT_TRUE(becomes(Phase::kError));
  EXPECT_EQ(probe_.recycles, 0);
  start_owner("o2");
  ASSERT_TRUE(eventually([&] { return probe_.recycles == 1; })) << "the runtime attaches to the new owner";
  EXPECT_TRUE(becomes(Phase::kReady));
}

TEST_F(NodeTest, ARuntimeInErrorIsRecycledAndADeadContainerAwaited) {
  start_everything();
  probe_.state = v1::ProbeStatus::ERROR;
  ASSERT_TRUE(becomes(Phase::kError));
  ASSERT_TRUE(eventually([&] { return probe_.recycles == 1; }));
  ASSERT_TRUE(becomes(Phase::kReady)) << node_->snapshot().reason();
  stop(probe_server_);
  ASSERT_TRUE(becomes(Phase::kError));
  ++probe_.instance;
  start_probe();
  EXPECT_TRUE(becomes(Phase::kReady)) << node_->snapshot().reason();
  EXPECT_EQ(probe_.recycles, 1);
}

TEST_F(NodeTest, TriggersTheWarmUpOfTheSystemPromptsBeforeItIsReady) {
  probe_.state = v1::ProbeStatus::NEEDS_WARMUP;
  start_everything();
  EXPECT_EQ(probe_.warmups, 1);
  EXPECT_EQ(probe_.instance, 2) << "the instance that warmed is not the one that serves";
}

TEST_F(NodeTest, AnUpdateOfTheAssetsRecyclesTheRuntime) {
  start_everything();
  owner_->generation = 2;
  ASSERT_TRUE(eventually([&] { return probe_.recycles == 1; }));
  EXPECT_TRUE(becomes(Phase::kReady));
  EXPECT_EQ(node_->snapshot().recycle_count(), 1u);
}

}  // namespace
}  // namespace tie::controller
