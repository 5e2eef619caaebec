#include "supervision/controllerd/peers.h"

#include <algorithm>
#include <chrono>

#include "cloudboard_control.grpc.pb.h"
#include "gpuhealth.grpc.pb.h"
#include "os/framed_message.h"
#include "owner.pb.h"
#include "probe.grpc.pb.h"
#include "supervision/rpc/unix_grpc.h"

namespace tie::controller {
namespace {

constexpr size_t kMaxOwnerReplyBytes = size_t{1} << 20;

// Grows from retry_ms to retry_max_ms while a peer stays away.
struct Pace {
  const PeerTiming& timing;
  int64_t next_ms = 0;
  int64_t wait() {
    next_ms = next_ms == 0 ? timing.retry_ms : std::min(next_ms + next_ms / 8 + 1, timing.retry_max_ms);
    return next_ms;
  }
  void reset() { next_ms = 0; }
};

Gpu gpu_of(v1::DeviceHealth health) {
  switch (health) {
    case v1::HEALTHY:
      return Gpu::kHealthy;
    case v1::DEGRADED:
      return Gpu::kDegraded;
    default:
      return Gpu::kUnavailable;
  }
}

std::string worst_reason(const v1::GpuVerdict& verdict) {
  for (const v1::DeviceState& device : verdict.devices())
    if (device.health() == verdict.health() && !device.reason().empty()) return device.name() + ": " + device.reason();
  return verdict.provider();
}

Runtime runtime_of(v1::ProbeStatus::State state) {
  switch (state) {
    case v1::ProbeStatus::INITIALIZING:
      return Runtime::kInitializing;
    case v1::ProbeStatus::READY:
      return Runtime::kReady;
    case v1::ProbeStatus::RECYCLING:
      return Runtime::kRecycling;
    case v1::ProbeStatus::NEEDS_WARMUP:
      return Runtime::kNeedsWarmup;
    default:
      return Runtime::kError;
  }
}

// What the owner hands out, as one text: another process of it, another model or other prompts make another text, and
// the runtimes attach anew.
std::string owner_identity(const v1::OwnerReply& reply) {
  std::string out = reply.instance_id();
  for (const v1::ModelState& model : reply.models())
    if (!model.model_id().empty()) out += "/" + model.model() + ":" + std::to_string(model.generation());
  return out;
}

OwnerReport judge_owner(const v1::OwnerReply& reply, const std::vector<std::string>& models) {
  OwnerReport report{Owner::kReady, "", ""};
  for (const std::string& name : models) {
    auto found = std::find_if(reply.models().begin(), reply.models().end(),
                              [&](const v1::ModelState& m) { return m.model() == name; });
    if (found == reply.models().end()) return {Owner::kError, "it has no model " + name, ""};
    if (found->state() == "error") return {Owner::kError, name + ": " + found->message(), ""};
    if (found->state() != "ready") report.state = Owner::kLoading;
    report.on_gpu = report.on_gpu || found->device() == "cuda";
    if (!found->message().empty()) report.message = name + ": " + found->message();
  }
  // Only of a complete set: a model that is still loading would look like a change when it comes.
  if (report.state == Owner::kReady) report.instance = owner_identity(reply);
  return report;
}

}  // namespace

void PeerThread::start() {
  thread_ = std::thread([this] { run(); });
}

void PeerThread::stop() {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

void PeerThread::join() {
  if (thread_.joinable()) thread_.join();
}

bool PeerThread::sleep(int64_t ms) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::milliseconds(ms), [this] { return stopping_.load(); });
  return !stopping_;
}

GpuWatcher::GpuWatcher(std::string socket, PeerTiming timing, Watchdog& dog, Sink sink)
    : socket_(std::move(socket)), timing_(timing), dog_(dog), sink_(std::move(sink)) {}

void GpuWatcher::listen() {
  auto channel = rpc::connect(socket_, Deadline::in_ms(timing_.connect_ms));
  if (!channel) return;
  auto stub = v1::GpuHealth::NewStub(*channel);
  grpc::ClientContext context;
  Watchdog::Guard guard(dog_, context, timing_.silence_ms);
  auto reader = stub->WatchVerdict(&context, {});
  v1::GpuVerdict verdict;
  while (reader->Read(&verdict)) {
    guard.heard();
    heard_ = true;
    sink_(GpuReport{gpu_of(verdict.health()), worst_reason(verdict), verdict.provider() != "cpu"});
  }
  (void)reader->Finish();
}

void GpuWatcher::run() {
  Pace pace{timing_};
  while (!stopping()) {
    heard_ = false;
    listen();
    if (heard_) pace.reset();
    sink_(GpuReport{Gpu::kUnknown, "no connection"});
    if (!sleep(pace.wait())) return;
  }
}

OwnerWatcher::OwnerWatcher(std::string socket, std::vector<std::string> models, PeerTiming timing, Sink sink)
    : socket_(std::move(socket)), models_(std::move(models)), timing_(timing), sink_(std::move(sink)) {}

// What the owner says over `socket`, which is connected first when it is not; closed when nothing came.
Result<OwnerReport> OwnerWatcher::ask(os::Fd& socket) {
  if (!socket) {
    TIE_TRY(socket, os::connect_unix(socket_, Deadline::in_ms(timing_.connect_ms)));
  }
  v1::OwnerRequest request;
  request.mutable_status();
  Deadline deadline = Deadline::in_ms(timing_.call_ms);
  auto reply = [&]() -> Result<OwnerReport> {
    TIE_CHECK_OK(os::send_message(socket.get(), request, deadline));
    TIE_TRY(auto received, os::receive_message<v1::OwnerReply>(socket.get(), kMaxOwnerReplyBytes, deadline));
    return judge_owner(received.message, models_);
  }();
  if (!reply) socket.close();
  return reply;
}

void OwnerWatcher::run() {
  Pace pace{timing_};
  os::Fd socket;
  while (!stopping()) {
    const bool used_before = socket.valid();
    auto report = ask(socket);
    // The owner gives an idle connection's place to a newcomer when there are many: it is there all the same.
    if (!report && used_before && report.error().code != Code::kDeadline) report = ask(socket);
    if (!report) {
      sink_(OwnerReport{Owner::kUnknown, "no connection", ""});
      if (!sleep(pace.wait())) return;
      continue;
    }
    int64_t wait_ms = report->state == Owner::kLoading ? timing_.owner_loading_poll_ms : timing_.owner_poll_ms;
    sink_(std::move(*report));
    pace.reset();
    if (!sleep(wait_ms)) return;
  }
}

ProbeWatcher::ProbeWatcher(size_t index, std::string socket, PeerTiming timing, Watchdog& dog, Sink sink)
    : index_(index), socket_(std::move(socket)), timing_(timing), dog_(dog), sink_(std::move(sink)) {}

void ProbeWatcher::listen() {
  auto channel = rpc::connect(socket_, Deadline::in_ms(timing_.connect_ms));
  if (!channel) return;
  auto stub = v1::StatusProbe::NewStub(*channel);
  grpc::ClientContext context;
  Watchdog::Guard guard(dog_, context, timing_.silence_ms);
  auto reader = stub->WatchStatus(&context, {});
  v1::ProbeStatus status;
  while (reader->Read(&status)) {
    guard.heard();
    heard_ = true;
    sink_(RuntimeReport{index_, runtime_of(status.state()), status.instance_id(), status.message()});
  }
  (void)reader->Finish();
}

void ProbeWatcher::run() {
  Pace pace{timing_};
  while (!stopping()) {
    heard_ = false;
    listen();
    if (heard_) pace.reset();
    sink_(RuntimeReport{index_, Runtime::kUnreachable, "", "no connection"});
    if (!sleep(pace.wait())) return;
  }
}

bool ask_recycle(const std::string& probe_socket, const SendRecycle& command, const PeerTiming& timing) {
  auto channel = rpc::connect(probe_socket, Deadline::in_ms(timing.connect_ms));
  if (!channel) return false;
  grpc::ClientContext context;
  context.set_deadline(rpc::call_deadline(timing.call_ms));
  v1::RecycleRequest request;
  request.set_reason(command.reason);
  request.set_drain_limit_ms(static_cast<uint32_t>(std::clamp<int64_t>(command.drain_limit_ms, 1, UINT32_MAX)));
  v1::RecycleReply reply;
  return v1::StatusProbe::NewStub(*channel)->Recycle(&context, request, &reply).ok();
}

std::optional<Reloaded> ask_reload(const std::string& owner_socket, int64_t limit_ms) {
  Deadline deadline = Deadline::in_ms(limit_ms);
  auto socket = os::connect_unix(owner_socket, deadline);
  if (!socket) return std::nullopt;
  v1::OwnerRequest request;
  request.mutable_reload();
  if (!os::send_message(socket->get(), request, deadline)) return std::nullopt;
  auto reply = os::receive_message<v1::OwnerReply>(socket->get(), kMaxOwnerReplyBytes, deadline);
  if (!reply) return std::nullopt;
  Reloaded out;
  for (const v1::ModelState& model : reply->message.models()) {
    if (model.state() == "ready") out.models.push_back(model.model());
    if (!model.message().empty() && !model.removed())
      out.refused += (out.refused.empty() ? "" : "; ") + model.model() + ": " + model.message();
  }
  return out;
}

bool ask_warmup(const std::string& probe_socket, const PeerTiming& timing) {
  auto channel = rpc::connect(probe_socket, Deadline::in_ms(timing.connect_ms));
  if (!channel) return false;
  grpc::ClientContext context;
  context.set_deadline(rpc::call_deadline(timing.call_ms));
  v1::WarmupReply reply;
  return v1::StatusProbe::NewStub(*channel)->Warmup(&context, {}, &reply).ok();
}

void Worker::post(std::function<void()> job) {
  std::lock_guard lock(mutex_);
  tie_check(jobs_.size() < kMaxJobs, "the controller's command queue is bounded");
  jobs_.push_back(std::move(job));
  changed_.notify_all();
}

void Worker::run() {
  while (!stopping()) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::milliseconds(200), [this] { return !jobs_.empty(); });
      if (jobs_.empty()) continue;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace tie::controller
