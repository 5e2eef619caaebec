// The controller as a whole against fake peers on real sockets: every peer may be absent, restart, hang; the operator's
// calls.
#include "supervision/controllerd/node_controller.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "cloudboard_control.grpc.pb.h"
#include "gpuhealth.grpc.pb.h"
#include "os/framed_message.h"
#include "owner.pb.h"
#include "probe.grpc.pb.h"
#include "supervision/controllerd/controller_service.h"
#include "supervision/rpc/unix_grpc.h"

namespace tie::controller {
namespace {

void nap(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

class FakeCloudboard final : public v1::CloudBoardControl::Service {
 public:
  std::atomic<int> registrations{0}, prewarms{0};
  std::atomic<uint32_t> in_flight{0}, granted{0};
  std::atomic<int> state{0};
  std::atomic<bool> hangs{false};

  grpc::Status Register(grpc::ServerContext* context, const v1::RegisterRequest*,
                        grpc::ServerWriter<v1::RegistrationEvent>* writer) override {
    v1::RegistrationEvent event;
    event.set_session_id(std::to_string(++registrations));
    while (!context->IsCancelled()) {
      if (!hangs && !writer->Write(event)) break;
      nap(50);
    }
    state = 0;
    granted = 0;
    return grpc::Status::OK;
  }
  grpc::Status UpdateHealthStatus(grpc::ServerContext* context, const v1::UpdateHealthStatusRequest* request,
                                  v1::UpdateHealthStatusReply* reply) override {
    while (hangs && !context->IsCancelled()) nap(5);
    if (request->session_id() != std::to_string(registrations))
      return {grpc::StatusCode::FAILED_PRECONDITION, "another session"};
    state = request->state();
    granted = request->max_requests();
    Deadline deadline = Deadline::in_ms(request->wait_ms());
    while (request->max_requests() == 0 && in_flight > 0 && !deadline.passed() && !context->IsCancelled()) nap(2);
    reply->set_in_flight(in_flight);
    reply->mutable_outcomes()->set_completed(41);
    reply->mutable_outcomes()->set_cut(3);
    return grpc::Status::OK;
  }
  grpc::Status GetLoad(grpc::ServerContext* context, const v1::GetLoadRequest* request,
                       v1::UpdateHealthStatusReply* reply) override {
    while (hangs && !context->IsCancelled()) nap(5);
    if (request->session_id() != std::to_string(registrations))
      return {grpc::StatusCode::FAILED_PRECONDITION, "another session"};
    reply->set_in_flight(in_flight);
    reply->mutable_outcomes()->set_completed(41);
    reply->mutable_outcomes()->set_cut(3);
    return grpc::Status::OK;
  }
  grpc::Status RestartPrewarmed(grpc::ServerContext*, const v1::RestartPrewarmedRequest*,
                                v1::RestartPrewarmedReply*) override {
    ++prewarms;
    return grpc::Status::OK;
  }
};

class FakeGpu final : public v1::GpuHealth::Service {
 public:
  std::atomic<int> health{v1::HEALTHY};
  grpc::Status WatchVerdict(grpc::ServerContext* context, const v1::GpuVerdictRequest*,
                            grpc::ServerWriter<v1::GpuVerdict>* writer) override {
    while (!context->IsCancelled()) {
      v1::GpuVerdict verdict;
      verdict.set_health(static_cast<v1::DeviceHealth>(health.load()));
      if (!writer->Write(verdict)) break;
      nap(10);
    }
    return grpc::Status::OK;
  }
};

// A container: a recycle makes a new instance after a while.
class FakeProbe final : public v1::StatusProbe::Service {
 public:
  std::atomic<int> state{v1::ProbeStatus::READY}, instance{1}, recycles{0};
  grpc::Status WatchStatus(grpc::ServerContext* context, const v1::ProbeStatusRequest*,
                           grpc::ServerWriter<v1::ProbeStatus>* writer) override {
    while (!context->IsCancelled()) {
      v1::ProbeStatus status;
      status.set_state(static_cast<v1::ProbeStatus::State>(state.load()));
      status.set_instance_id("i" + std::to_string(instance));
      if (!writer->Write(status)) break;
      nap(5);
    }
    return grpc::Status::OK;
  }
  std::atomic<int> warmups{0};
  grpc::Status Warmup(grpc::ServerContext*, const v1::WarmupRequest*, v1::WarmupReply*) override {
    ++warmups;
    return renew();
  }
  grpc::Status Recycle(grpc::ServerContext*, const v1::RecycleRequest*, v1::RecycleReply*) override {
    ++recycles;
    return renew();
  }
  grpc::Status renew() {
    state = v1::ProbeStatus::RECYCLING;
    std::thread([this] {
      nap(50);
      ++instance;
      state = v1::ProbeStatus::INITIALIZING;
      nap(30);
      state = v1::ProbeStatus::READY;
    }).detach();
    return grpc::Status::OK;
  }
};

// owner.sock with the states of one model.
class FakeOwner {
 public:
  explicit FakeOwner(const std::string& path, std::string instance = "o1")
      : instance_(std::move(instance)), listener_(std::move(os::listen_unix(path).value())), path_(path) {
    thread_ = std::thread([this] { run(); });
  }
  ~FakeOwner() {
    stop_ = true;
    thread_.join();
    ::unlink(path_.c_str());
  }
  std::atomic<const char*> state{"ready"};
  std::atomic<uint64_t> generation{1}, generation_after_reload{0};
  std::atomic<const char*> refusal_after_reload{""};

 private:
  void run() {
    std::vector<os::Fd> clients;
    while (!stop_) {
      if (auto client = os::accept_unix(listener_.get(), Deadline::in_ms(5))) clients.push_back(std::move(*client));
      for (os::Fd& client : clients) {
        if (!client.valid() || !os::wait_readable(client.get(), Deadline::in_ms(2))) continue;
        auto request = os::receive_message<v1::OwnerRequest>(client.get(), 1 << 16, Deadline::in_ms(500));
        if (!request) {
          client.close();
          continue;
        }
        v1::OwnerReply reply;
        reply.set_instance_id(instance_);
        auto& model = *reply.add_models();
        model.set_model("m");
        model.set_state(state.load());
        model.set_model_id(std::string(32, 'x'));
        if (request->message.has_reload() && generation_after_reload != 0) generation = generation_after_reload.load();
        model.set_generation(generation);
        if (request->message.has_reload()) model.set_message(refusal_after_reload);
        (void)os::send_message(client.get(), reply, Deadline::in_ms(500));
      }
    }
  }
  std::string instance_;
  os::Fd listener_;
  std::string path_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class NodeTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/tie-node-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    options_.core.recycle_interval_ms = 0;
    options_.core.peer_grace_ms = 300;
    options_.core.error_backoff_ms = 50;
    options_.core.refresh_ms = 100;
    options_.timing.silence_ms = 500;
    options_.timing.registration_silence_ms = 500;
    options_.timing.call_ms = 300;
    options_.timing.owner_poll_ms = 20;
    options_.node_id = "n";
    options_.cloudboard_socket = folder_ + "/control.sock";
    options_.gpuhealth_socket = folder_ + "/gpu.sock";
    options_.owner_socket = folder_ + "/owner.sock";
    options_.probes = {{"m", folder_ + "/probe.sock"}};
  }
  void TearDown() override {
    if (operator_) operator_->stop(Deadline::in_ms(100));
    if (node_) node_->stop();
    for (auto* server : {&cloudboard_server_, &gpu_server_, &probe_server_})
      if (*server) (*server)->stop(Deadline::in_ms(100));
    owner_.reset();
    std::filesystem::remove_all(folder_);
  }
  using Server = std::unique_ptr<rpc::UnixGrpcServer>;
  Server serve(const std::string& path, grpc::Service* service) {
    return std::make_unique<rpc::UnixGrpcServer>(std::move(rpc::UnixGrpcServer::start(path, {service}).value()));
  }
  void start_cloudboard() { cloudboard_server_ = serve(options_.cloudboard_socket, &cloudboard_); }
  void start_gpu() { gpu_server_ = serve(options_.gpuhealth_socket, &gpu_); }
  void start_probe() { probe_server_ = serve(options_.probes[0].socket, &probe_); }
  void start_owner(const std::string& instance = "o1") {
    owner_ = std::make_unique<FakeOwner>(options_.owner_socket, instance);
  }
  void stop(Server& server) {
    server->stop(Deadline::in_ms(0));
    server.reset();
  }
  void start_node() {
    node_ = std::make_unique<NodeController>(options_);
    node_->start();
  }
  void start_everything() {
    start_cloudboard();
    start_gpu();
    start_probe();
    start_owner();
    start_node();
    ASSERT_TRUE(becomes(Phase::kReady)) << node_->snapshot().reason();
  }
  bool becomes(Phase phase, int64_t limit_ms = 10'000) {
    return node_->wait([&](const Core& core) { return core.phase() == phase; }, Deadline::in_ms(limit_ms));
  }
  template <typename Condition>
  static bool eventually(Condition holds, int64_t limit_ms = 10'000) {
    Deadline deadline = Deadline::in_ms(limit_ms);
    while (!holds() && !deadline.passed()) nap(2);
    return holds();
  }
  std::unique_ptr<v1::Controller::Stub> operator_stub() {
    service_ = std::make_unique<ControllerService>(*node_);
    operator_ = serve(folder_ + "/controller.sock", service_.get());
    return v1::Controller::NewStub(rpc::connect(folder_ + "/controller.sock", Deadline::in_ms(1000)).value());
  }

  std::string folder_;
  NodeOptions options_;
  FakeCloudboard cloudboard_;
  FakeGpu gpu_;
  FakeProbe probe_;
  std::unique_ptr<FakeOwner> owner_;
  Server cloudboard_server_, gpu_server_, probe_server_, operator_;
  std::unique_ptr<ControllerService> service_;
  std::unique_ptr<NodeController> node_;
};

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
  start_cloudboard();
  start_gpu();
  start_probe();
  start_owner();
  start_node();
  ASSERT_TRUE(becomes(Phase::kReady)) << node_->snapshot().reason();
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
