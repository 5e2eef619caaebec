#include "inference/hosts/server/runtime_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <sys/stat.h>

#include <cerrno>
#include <thread>

#include "inference/hosts/server/call_service.h"
#include "inference/hosts/server/limits.h"
#include "os/unix_socket.h"

namespace tie::runtime_host {
namespace {
constexpr auto kEndingPatience = std::chrono::milliseconds(500);  // for streams whose client does not read their end
}

struct RuntimeServer::State {
  explicit State(const std::string& model) : unary(model) {}
  grpc::AsyncGenericService service;
  UnaryCalls unary;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<CallService> calls;
  std::unique_ptr<engine::Engine> engine;
};

RuntimeServer::RuntimeServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<RuntimeServer>> RuntimeServer::start(const std::string& model, const std::string& socket_path) {
  if (socket_path.size() > os::kMaxSocketPathBytes) return fail(Code::kBadRequest, "the socket path is over 107 bytes");
  auto state = std::make_unique<State>(model);
  grpc::ServerBuilder builder;
  grpc::ResourceQuota quota("afm-runtime");
  quota.SetMaxThreads(kMaxThreads);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  // Both ends are on this machine: what a probe would measure is known, and each wakes the app once more.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
  builder.AddListeningPort("unix:" + socket_path, grpc::InsecureServerCredentials());
  builder.RegisterAsyncGenericService(&state->service);
  auto queue = builder.AddCompletionQueue();
  state->calls = std::make_unique<CallService>(model, state->service, state->unary, std::move(queue));
  state->server = builder.BuildAndStart();
  if (!state->server) return fail(Code::kIo, "cannot listen on " + socket_path);
  // Where users differ (systemd), the folder's group decides who connects.
  if (::chmod(socket_path.c_str(), 0660) != 0) return fail_errno("setting the mode of " + socket_path, errno);
  state->calls->start();
  return std::unique_ptr<RuntimeServer>(new RuntimeServer(std::move(state)));
}

void RuntimeServer::serve(std::unique_ptr<engine::EngineCore> core, KvxferService* kvxfer, RegisteredPrompts prompts) {
  auto* calls = state_->calls.get();
  calls->set_prompts(std::move(prompts));
  state_->engine = std::make_unique<engine::Engine>(std::move(core), [calls] { calls->step_done(); });
  calls->set_kvxfer(kvxfer);
  calls->set_engine(state_->engine.get());
  state_->unary.set_ready(true);
}

void RuntimeServer::set_not_ready(const char* why) {
  state_->calls->set_not_ready(why);
}

void RuntimeServer::drain(Deadline deadline) {
  state_->unary.set_ready(false);
  if (!state_->engine) return;
  state_->engine->stop_accepting();
  state_->calls->drain();
  state_->engine->wait_idle(deadline);
  auto patience = Deadline::in_ms(std::min(deadline.remaining_ms(), int64_t{kEndingPatience.count()}));
  while (state_->calls->open_calls() > 0 && !patience.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

RuntimeServer::~RuntimeServer() {
  state_->calls->drain();
  // A connection without a call (a warm request process) does not read our goodbye and is not worth waiting for.
  auto patience = state_->calls->open_calls() > 0 ? kEndingPatience : std::chrono::milliseconds(0);
  state_->server->Shutdown(std::chrono::system_clock::now() + patience);
  state_->calls->set_engine(nullptr);
  state_->engine.reset();
  state_->calls->stop();
}

}  // namespace tie::runtime_host
