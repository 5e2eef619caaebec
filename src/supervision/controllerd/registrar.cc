#include "cloudboard_control.grpc.pb.h"
#include "supervision/controllerd/peers.h"
#include "supervision/rpc/unix_grpc.h"

namespace tie::controller {
namespace {

RequestCounts counts_of(const v1::RequestOutcomes& outcomes) {
  return {.completed = outcomes.completed(),
          .refused_busy = outcomes.refused_busy(),
          .refused_key = outcomes.refused_key(),
          .refused_replay = outcomes.refused_replay(),
          .refused_request = outcomes.refused_request(),
          .failed = outcomes.failed(),
          .cancelled = outcomes.cancelled(),
          .cut = outcomes.cut()};
}

}  // namespace

Registrar::Registrar(std::string socket, std::string node_id, std::vector<std::string> models, PeerTiming timing,
                     Watchdog& dog, Sink sink)
    : socket_(std::move(socket)),
      node_id_(std::move(node_id)),
      models_(std::move(models)),
      timing_(timing),
      dog_(dog),
      sink_(std::move(sink)) {}

void Registrar::run() {
  int64_t pace_ms = timing_.retry_ms;
  while (!stopping()) {
    int64_t start = monotonic_ms();
    hold();
    // A registration that lasted starts the pace anew.
    pace_ms = monotonic_ms() - start > timing_.retry_max_ms * 4 ? timing_.retry_ms
                                                                : std::min(pace_ms * 2, timing_.retry_max_ms);
    if (!sleep(pace_ms)) return;
  }
}

// Registers and stays registered until the stream ends, for whichever reason.
void Registrar::hold() {
  auto channel = rpc::connect(socket_, Deadline::in_ms(timing_.connect_ms));
  if (!channel) return;
  grpc::ClientContext context;
  Watchdog::Guard guard(dog_, context, timing_.registration_silence_ms);
  v1::RegisterRequest request;
  request.set_node_id(node_id_);
  for (const std::string& model : models_) request.add_models(model);
  auto stub = v1::CloudBoardControl::NewStub(*channel);
  auto reader = stub->Register(&context, request);
  {
    std::lock_guard lock(mutex_);
    registration_ = &context;
  }
  v1::RegistrationEvent event;
  bool registered = false;
  while (reader->Read(&event)) {
    guard.heard();
    if (registered) continue;
    registered = true;
    {
      std::lock_guard lock(mutex_);
      channel_ = *channel;
      session_ = event.session_id();
    }
    sink_(Registration{true});
  }
  {
    std::lock_guard lock(mutex_);
    registration_ = nullptr;
    channel_.reset();
    session_.clear();
    if (advertising_ != nullptr) advertising_->TryCancel();
  }
  (void)reader->Finish();
  if (registered) sink_(Registration{false});
}

void Registrar::drop() {
  std::lock_guard lock(mutex_);
  if (registration_ != nullptr) registration_->TryCancel();
}

void Registrar::cancel_advertise() {
  std::lock_guard lock(mutex_);
  if (advertising_ != nullptr) advertising_->TryCancel();
}

void Registrar::advertise(const Advertise& command) {
  grpc::ClientContext context;
  context.set_deadline(rpc::call_deadline(command.wait_ms + timing_.call_ms));
  v1::UpdateHealthStatusRequest request;
  std::shared_ptr<grpc::Channel> channel;
  {
    std::lock_guard lock(mutex_);
    channel = channel_;
    request.set_session_id(session_);
    if (channel != nullptr) advertising_ = &context;
  }
  if (channel == nullptr) return sink_(Advertised{command.op, false, 0});
  request.set_state(static_cast<v1::NodeState>(command.state));
  request.set_max_requests(command.max_requests);
  request.set_reason(command.reason);
  request.set_wait_ms(static_cast<uint32_t>(command.wait_ms));
  v1::UpdateHealthStatusReply reply;
  grpc::Status status = v1::CloudBoardControl::NewStub(channel)->UpdateHealthStatus(&context, request, &reply);
  {
    std::lock_guard lock(mutex_);
    advertising_ = nullptr;
  }
  // Cancelled: a later state replaced this one. Anything else: what cloudboardd believes is unknown, so the
  // registration starts anew.
  if (!status.ok() && status.error_code() != grpc::StatusCode::CANCELLED) drop();
  sink_(Advertised{command.op, status.ok(), reply.in_flight(), counts_of(reply.outcomes())});
}

std::optional<LoadReport> Registrar::ask_load(int64_t limit_ms) {
  std::shared_ptr<grpc::Channel> channel;
  v1::GetLoadRequest request;
  {
    std::lock_guard lock(mutex_);
    channel = channel_;
    request.set_session_id(session_);
  }
  if (channel == nullptr) return std::nullopt;
  grpc::ClientContext context;
  context.set_deadline(rpc::call_deadline(limit_ms));
  v1::UpdateHealthStatusReply reply;
  if (!v1::CloudBoardControl::NewStub(channel)->GetLoad(&context, request, &reply).ok()) return std::nullopt;
  return LoadReport{reply.in_flight(), counts_of(reply.outcomes())};
}

bool Registrar::restart_prewarmed(int64_t limit_ms) {
  std::shared_ptr<grpc::Channel> channel;
  {
    std::lock_guard lock(mutex_);
    channel = channel_;
  }
  if (channel == nullptr) return false;
  grpc::ClientContext context;
  context.set_deadline(rpc::call_deadline(limit_ms));
  v1::RestartPrewarmedReply reply;
  return v1::CloudBoardControl::NewStub(channel)->RestartPrewarmed(&context, {}, &reply).ok();
}

}  // namespace tie::controller
