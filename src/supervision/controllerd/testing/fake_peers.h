// What the controller's tests share: fake peers on real sockets, each of which may be absent, restart or hang, and a
// controller among them.
#pragma once
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
#include "supervision/controllerd/node_controller.h"
#include "supervision/rpc/unix_grpc.h"

namespace tie::controller::testing {

inline void nap(int ms) {
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
  std::atomic<bool> displaces{false};  // closes each connection after its answer, as if others had come

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
        v1::ModelState& gone = *reply.add_models();  // the operator took it away long ago
        gone.set_model("gone");
        gone.set_state("error");
        gone.set_message("removed from the assets");
        gone.set_removed(true);
        (void)os::send_message(client.get(), reply, Deadline::in_ms(500));
        if (displaces) client.close();
      }
    }
  }
  std::string instance_;
  os::Fd listener_;
  std::string path_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class NodeTest : public ::testing::Test {
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

}  // namespace tie::controller::testing
