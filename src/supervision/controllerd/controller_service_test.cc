// What the operator reads and orders: reloads, the status, the metrics.
#include "supervision/controllerd/testing/fake_peers.h"

namespace tie::controller {
namespace {

using testing::NodeTest;

TEST_F(NodeTest, ReloadAsksTheOwnerAndReturnsWhenTheNodeServesWhatItLoaded) {
  start_everything();
  auto stub = operator_stub();
  owner_->generation_after_reload = 5;
  grpc::ClientContext context;
  v1::NodeStatus status;
  ASSERT_TRUE(stub->Reload(&context, {}, &status).ok());
  EXPECT_EQ(status.state(), "ready");
  EXPECT_EQ(probe_.recycles, 1);
}

TEST_F(NodeTest, AReloadWhoseVersionIsRefusedIsAnErrorThatSaysWhy) {
  start_everything();
  auto stub = operator_stub();
  owner_->refusal_after_reload = "the new version is refused: it is not signed";
  grpc::ClientContext context;
  v1::NodeStatus status;
  grpc::Status outcome = stub->Reload(&context, {}, &status);
  EXPECT_EQ(outcome.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(outcome.error_message(), "m: the new version is refused: it is not signed");
  EXPECT_EQ(probe_.recycles, 0);
  EXPECT_EQ(node_->snapshot().phase(), Phase::kReady) << "the old one goes on";
}

TEST_F(NodeTest, RecyclesByTime) {
  options_.core.recycle_interval_ms = 300;
  start_everything();
  EXPECT_TRUE(eventually([&] { return node_->snapshot().recycle_count() >= 3; })) << node_->snapshot().recycle_count();
}

TEST_F(NodeTest, StatusAndMetricsTellHowRequestsEnded) {
  start_everything();
  ASSERT_TRUE(eventually([this] { return node_->snapshot().request_counts().completed == 41; }));
  auto stub = operator_stub();
  grpc::ClientContext status_context, metrics_context;
  v1::NodeStatus status;
  v1::NodeMetrics metrics;
  ASSERT_TRUE(stub->GetStatus(&status_context, {}, &status).ok());
  EXPECT_EQ(status.outcomes().completed(), 41u);
  EXPECT_EQ(status.outcomes().cut(), 3u);
  ASSERT_TRUE(stub->GetMetrics(&metrics_context, {}, &metrics).ok());
  EXPECT_NE(metrics.text().find("\ntie_requests_cut_total 3\n"), std::string::npos) << metrics.text();
}

TEST_F(NodeTest, RequestsInFlightAreThoseOfTheMomentOfAsking) {
  options_.core.refresh_ms = 3'600'000;  // no report of its own meanwhile
  start_everything();
  auto stub = operator_stub();
  auto shown = [&] {
    grpc::ClientContext context;
    v1::NodeStatus status;
    EXPECT_TRUE(stub->GetStatus(&context, {}, &status).ok());
    EXPECT_FALSE(status.load_unknown());
    return status.in_flight();
  };
  for (uint32_t now : {3u, 0u, 7u}) {
    cloudboard_.in_flight = now;
    EXPECT_EQ(shown(), now);
  }
  grpc::ClientContext metrics_context;
  v1::NodeMetrics metrics;
  cloudboard_.in_flight = 5;
  ASSERT_TRUE(stub->GetMetrics(&metrics_context, {}, &metrics).ok());
  EXPECT_NE(metrics.text().find("\ntie_requests_in_flight 5\n"), std::string::npos) << metrics.text();
  // While it drains, too, although the answer to the drain is still to come.
  grpc::ClientContext drain_context;
  v1::NodeDrainRequest drain;
  v1::NodeStatus drained;
  std::thread draining([&] { (void)stub->Drain(&drain_context, drain, &drained); });
  ASSERT_TRUE(becomes(Phase::kBusy));
  cloudboard_.in_flight = 2;
  EXPECT_EQ(shown(), 2u);
  cloudboard_.in_flight = 0;
  draining.join();
  EXPECT_EQ(drained.in_flight(), 0u);
}

TEST_F(NodeTest, StatusSaysThatTheLoadIsNotKnownWhenCloudboardIsSilent) {
  start_everything();
  cloudboard_.hangs = true;
  grpc::ClientContext context;
  v1::NodeStatus status;
  ASSERT_TRUE(operator_stub()->GetStatus(&context, {}, &status).ok());
  EXPECT_TRUE(status.load_unknown());
}

TEST_F(NodeTest, StatusNamesEveryComponent) {
  start_everything();
  gpu_.health = v1::DEGRADED;
  ASSERT_TRUE(becomes(Phase::kError));
  auto stub = operator_stub();
  grpc::ClientContext context;
  v1::NodeStatus status;
  ASSERT_TRUE(stub->GetStatus(&context, {}, &status).ok());
  EXPECT_EQ(status.state(), "error");
  EXPECT_NE(status.reason().find("devices"), std::string::npos);
  std::vector<std::string> rows;
  for (const auto& component : status.components()) rows.push_back(component.name() + " " + component.state());
  EXPECT_EQ(rows, (std::vector<std::string>{"runtime/m ready", "model-owner ready", "gpuhealth degraded",
                                            "cloudboard registered"}));
}

}  // namespace
}  // namespace tie::controller
