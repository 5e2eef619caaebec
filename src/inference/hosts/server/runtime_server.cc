#include "inference/hosts/server/runtime_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <sys/stat.h>

#include <cerrno>
#include <thread>

#include "inference/hosts/server/limits.h"
#include "inference/hosts/server/stream_service.h"
#include "os/unix_socket.h"

namespace tie::runtime_host {
namespace {
constexpr auto kEndingPatience = std::chrono::milliseconds(500);  // for streams whose client does not read their end
}

struct RuntimeServer::State {
  InferenceService service;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<StreamService> streams;
  std::unique_ptr<engine::Engine> engine;
};

RuntimeServer::RuntimeServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<RuntimeServer>> RuntimeServer::start(const std::string& model, const std::string& socket_path) {
  if (socket_path.size() > os::kMaxSocketPathBytes) return fail(Code::kBadRequest, "the socket path is over 107 bytes");
  grpc::EnableDefaultHealthCheckService(true);
  auto state = std::make_unique<State>();
  state->service.set_model(model);
  grpc::ServerBuilder builder;
  grpc::ResourceQuota quota("afm-runtime");
  quota.SetMaxThreads(kMaxThreads);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 2);
  builder.AddListeningPort("unix:" + socket_path, grpc::InsecureServerCredentials());
  builder.RegisterService(&state->service);
  auto queue = builder.AddCompletionQueue();
  state->streams = std::make_unique<StreamService>(model, state->service, std::move(queue));
  state->server = builder.BuildAndStart();
  if (!state->server) return fail(Code::kIo, "cannot listen on " + socket_path);
  // Where users differ (systemd), the folder's group decides who connects.
  if (::chmod(socket_path.c_str(), 0660) != 0) return fail_errno("setting the mode of " + socket_path, errno);
  state->server->GetHealthCheckService()->SetServingStatus(false);
  state->streams->start();
  return std::unique_ptr<RuntimeServer>(new RuntimeServer(std::move(state)));
}

void RuntimeServer::serve(std::unique_ptr<engine::EngineCore> core) {
  auto* streams = state_->streams.get();
  state_->engine = std::make_unique<engine::Engine>(std::move(core), [streams] { streams->wake(); });
  streams->set_engine(state_->engine.get());
  state_->service.set_ready(true);
  state_->server->GetHealthCheckService()->SetServingStatus(true);
}

void RuntimeServer::set_not_ready(const char* why) { state_->streams->set_not_ready(why); }

void RuntimeServer::drain(Deadline deadline) {
  state_->service.set_ready(false);
  state_->server->GetHealthCheckService()->SetServingStatus(false);
  if (!state_->engine) return;
  state_->engine->stop_accepting();
  state_->streams->drain();
  state_->engine->wait_idle(deadline);
  auto patience = Deadline::in_ms(std::min(deadline.remaining_ms(), int64_t{kEndingPatience.count()}));
  while (state_->streams->open_calls() > 0 && !patience.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

RuntimeServer::~RuntimeServer() {
  state_->streams->drain();
  state_->server->Shutdown(std::chrono::system_clock::now() + kEndingPatience);
  state_->streams->set_engine(nullptr);
  state_->engine.reset();
  state_->streams->stop();
}

}  // namespace tie::runtime_host
