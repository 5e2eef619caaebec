// All calls of the runtime's socket: one thread over one completion queue. It answers the small ones, reads the
// requests of ModelStreamInfer, hands them to the engine and writes what comes back. One thread and no generated
// service: with any other poller in the process, gRPC passes each event from thread to thread. A malformed request is
// answered on its stream with an error and harms nothing else. A call that goes away cancels its requests. One response
// per call is under way at a time; what the engine produces meanwhile gathers in RequestOutput. Threads: start,
// set_engine, drain and stop from any; step_done and
// announcements on the engine's; everything else on its own thread.
#pragma once
#include <grpcpp/alarm.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "grpc_service.pb.h"
#include "inference/engine/engine.h"
#include "inference/hosts/server/kvxfer_service.h"
#include "inference/hosts/server/registered_prompts.h"
#include "inference/hosts/server/request_output.h"
#include "inference/hosts/server/unary_calls.h"

namespace tie::runtime_host {

class CallService {
 public:
  CallService(std::string model, grpc::AsyncGenericService& service, const UnaryCalls& unary,
              std::unique_ptr<grpc::ServerCompletionQueue> queue);
  ~CallService();

  void start();  // once the server listens
  void set_engine(
      engine::Engine* engine);  // until then calls are refused as not ready; null again before the engine goes
  void set_kvxfer(KvxferService* kvxfer) { kvxfer_ = kvxfer; }  // before the engine; null: no KV transfer
  void set_prompts(RegisteredPrompts prompts) { prompts_ = std::move(prompts); }  // before the engine
  void step_done();  // the engine's thread, after each step; cheap when nothing is due
  void set_not_ready(const char* why) { not_ready_ = why; }  // what calls hear until there is an engine; a literal
  void drain();  // refuses new calls and requests; calls end when their requests have
  uint32_t open_calls() const { return open_calls_; }
  // After Server::Shutdown and with no engine: ends the thread.
  void stop();

 private:
  struct Call;
  enum class Op : uint8_t { kAccept, kDone, kRead, kWrite, kFinish };
  struct Tag {
    Call* call;
    Op op;
  };
  void run();
  void accept_next();
  void handle(Tag& tag, bool ok);
  void on_accept(Call& call, bool ok);
  void on_read(Call& call, bool ok);
  void answer_unary(Call& call, bool has_message);
  void read_next(Call& call);
  Result<void> take_request(Call& call, std::string& id);
  Result<void> name_buffers(ParsedRequest& request);
  void pump(Call& call);
  void finish(Call& call, const grpc::Status& status);
  void drop_requests(Call& call);
  void release(Call& call);
  void wake();
  void on_alarm();

  const std::string model_;
  grpc::AsyncGenericService& service_;
  const UnaryCalls& unary_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::atomic<engine::Engine*> engine_{nullptr};
  std::atomic<KvxferService*> kvxfer_{nullptr};
  RegisteredPrompts prompts_;  // set before the engine, read after it was seen
  std::atomic<const char*> not_ready_{"the runtime is still starting"};
  std::atomic<bool> draining_{false}, stopping_{false};
  std::atomic<uint32_t> open_calls_{0};
  std::vector<Call*> calls_;              // accepted, not released
  inference::ModelInferRequest request_;  // parsed into again and again

  grpc::Alarm alarm_;
  std::atomic<bool> alarm_set_{false};
  std::vector<std::shared_ptr<RequestOutput>> held_;  // announced, not yet due; the engine's thread
  std::mutex ready_mutex_;
  std::vector<std::shared_ptr<RequestOutput>> ready_, taken_;
  std::atomic<bool> has_ready_{false};
  std::thread thread_;
};

}  // namespace tie::runtime_host
