// The probe against a runtime that speaks Triton's interface and does as the test says; its process is a child of the
// test.
#include "supervision/status_probe/probe.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>

#include "grpc_service.grpc.pb.h"
#include "os/end_note.h"
#include "sampling.pb.h"
#include "supervision/rpc/unix_grpc.h"
#include "supervision/status_probe/probe_service.h"

namespace tie::probe {
namespace {

enum class Behaviour { kGood, kRefuses, kNotReady, kOverloaded, kTwoTokens, kNoFinal, kHangs, kNeedsWarmup };

class FakeRuntime final : public inference::GRPCInferenceService::Service {
 public:
  std::atomic<Behaviour> behaviour{Behaviour::kGood};
  std::atomic<int> canaries{0};
  std::atomic<bool> grammar_was_empty{false};
  std::atomic<bool> stopped{false};  // takes calls and answers none

  grpc::Status ServerLive(grpc::ServerContext* context, const inference::ServerLiveRequest*,
                          inference::ServerLiveResponse* reply) override {
    while (stopped && !context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    reply->set_live(true);
    return grpc::Status::OK;
  }

  grpc::Status ModelStreamInfer(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<inference::ModelStreamInferResponse, inference::ModelInferRequest>* stream) override {
    inference::ModelInferRequest request;
    if (!stream->Read(&request)) return grpc::Status::OK;
    ++canaries;
    note_grammar(request);
    Behaviour b = behaviour;
    if (b == Behaviour::kNotReady) return {grpc::StatusCode::UNAVAILABLE, "loading"};
    if (b == Behaviour::kOverloaded) return {grpc::StatusCode::RESOURCE_EXHAUSTED, "full"};
    if (b == Behaviour::kHangs) {
      while (!context->IsCancelled() && behaviour == Behaviour::kHangs)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return grpc::Status::CANCELLED;
    }
    inference::ModelStreamInferResponse response;
    if (b == Behaviour::kRefuses || b == Behaviour::kNeedsWarmup) {
      response.set_error_message(b == Behaviour::kRefuses ? "INTERNAL: broken" : "NOT_READY: needs_warmup");
      stream->Write(response);
      return grpc::Status::OK;
    }
    auto& infer = *response.mutable_infer_response();
    infer.add_outputs()->set_name("token_ids");
    infer.add_raw_output_contents(std::string(b == Behaviour::kTwoTokens ? 8 : 4, '\1'));
    (*infer.mutable_parameters())["triton_final_response"].set_bool_param(b != Behaviour::kNoFinal);
    stream->Write(response);
    return grpc::Status::OK;
  }

 private:
  void note_grammar(const inference::ModelInferRequest& request) {
    for (int i = 0; i < request.inputs_size(); ++i)
      if (request.inputs(i).name() == "grammar")
        grammar_was_empty = request.raw_input_contents(i) == std::string(4, '\0');
  }
};

class ProbeTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/tie-probe-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    folder_ = folder;
    options_.canary.runtime_socket = folder_ + "/runtime.sock";
    options_.canary.model = "m";
    options_.ready_interval_ms = 30;
    options_.canary_deadline_ms = 300;
    options_.unattended_ms = 300;
    // Stands for the runtime's process: ends at SIGTERM, but only if it may.
    child_ = ::fork();
    if (child_ == 0) {
      for (;;) ::pause();
    }
    options_.runtime_pid = child_;
  }
  void TearDown() override {
    if (probe_) probe_->stop();
    if (thread_.joinable()) thread_.join();
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
    if (server_) server_->stop(Deadline::in_ms(200));
    std::filesystem::remove_all(folder_);
  }
  void start_runtime() {
    server_ = std::make_unique<rpc::UnixGrpcServer>(
        std::move(rpc::UnixGrpcServer::start(options_.canary.runtime_socket, {&runtime_}).value()));
  }
  void start_probe() {
    probe_ = std::make_unique<Probe>(options_);
    thread_ = std::thread([this] {
      outcome_ = probe_->run();
      ended_ = true;
    });
  }
  bool becomes(State state, int64_t limit_ms = 5'000) {
    Deadline deadline = Deadline::in_ms(limit_ms);
    for (Status now = probe_->status(); now.state != state; now = probe_->wait_change(now.version, deadline))
      if (deadline.passed()) return false;
    return true;
  }
  bool ends(int64_t limit_ms = 5'000) {
    Deadline deadline = Deadline::in_ms(limit_ms);
    while (!ended_ && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return ended_;
  }

  std::string folder_;
  ProbeOptions options_;
  FakeRuntime runtime_;
  std::unique_ptr<rpc::UnixGrpcServer> server_;
  std::unique_ptr<Probe> probe_;
  std::thread thread_;
  Result<void> outcome_;
  std::atomic<bool> ended_{false};
  pid_t child_ = 0;
};

TEST_F(ProbeTest, IsReadyOnlyAfterACanaryThatRanTheConstrainedPath) {
  start_probe();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(probe_->status().state, State::kInitializing) << "nobody listens yet";
  runtime_.behaviour = Behaviour::kNotReady;
  start_runtime();
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  EXPECT_EQ(probe_->status().state, State::kInitializing) << probe_->status().message;
  runtime_.behaviour = Behaviour::kGood;
  ASSERT_TRUE(becomes(State::kReady));
  EXPECT_TRUE(runtime_.grammar_was_empty);
  int before = runtime_.canaries;
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_GT(runtime_.canaries, before) << "canaries go on";
}

TEST_F(ProbeTest, EveryWrongAnswerIsAnError) {
  start_runtime();
  start_probe();
  for (Behaviour wrong :
       {Behaviour::kRefuses, Behaviour::kTwoTokens, Behaviour::kNoFinal, Behaviour::kHangs, Behaviour::kNotReady}) {
    runtime_.behaviour = Behaviour::kGood;
    ASSERT_TRUE(becomes(State::kReady));
    runtime_.behaviour = wrong;
    EXPECT_TRUE(becomes(State::kError)) << static_cast<int>(wrong);
    EXPECT_FALSE(probe_->status().message.empty());
  }
}

TEST_F(ProbeTest, AFullRuntimeIsAlive) {
  start_runtime();
  start_probe();
  ASSERT_TRUE(becomes(State::kReady));
  runtime_.behaviour = Behaviour::kOverloaded;
  int before = runtime_.canaries;
  while (runtime_.canaries < before + 3) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(probe_->status().state, State::kReady);
}

TEST_F(ProbeTest, AStoppedRuntimeIsAnErrorLongBeforeTheCanarysDeadline) {
  options_.canary_deadline_ms = 60'000;
  options_.liveness_interval_ms = 20;
  options_.liveness_deadline_ms = 100;
  start_runtime();
  start_probe();
  ASSERT_TRUE(becomes(State::kReady));
  runtime_.behaviour = Behaviour::kHangs;
  runtime_.stopped = true;
  ASSERT_TRUE(becomes(State::kError)) << "and not after a minute";
  EXPECT_EQ(probe_->status().message, "the runtime does not answer");
  runtime_.behaviour = Behaviour::kGood;
  runtime_.stopped = false;
  EXPECT_TRUE(becomes(State::kReady));
}

TEST_F(ProbeTest, ARuntimeThatIsMerelySlowKeepsItsState) {
  options_.canary_deadline_ms = 60'000;
  options_.liveness_interval_ms = 10;
  options_.liveness_deadline_ms = 200;
  start_runtime();
  start_probe();
  ASSERT_TRUE(becomes(State::kReady));
  uint64_t version = probe_->status().version;
  runtime_.behaviour = Behaviour::kHangs;  // its canaries wait, but it answers that it lives
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  EXPECT_EQ(probe_->status().state, State::kReady);
  EXPECT_EQ(probe_->status().version, version);
}

TEST_F(ProbeTest, AColdPrefixCacheIsItsOwnState) {
  runtime_.behaviour = Behaviour::kNeedsWarmup;
  start_runtime();
  start_probe();
  EXPECT_TRUE(becomes(State::kNeedsWarmup));
}

TEST_F(ProbeTest, AWarmUpIsASignalToARuntimeThatWaitsForItAndToNoOther) {
  start_runtime();
  start_probe();
  ASSERT_TRUE(becomes(State::kReady));
  EXPECT_EQ(probe_->request_warmup().error().code, Code::kFailedPrecondition) << "the signal would end it";
  runtime_.behaviour = Behaviour::kNeedsWarmup;
  ASSERT_TRUE(becomes(State::kNeedsWarmup));
  auto asked = probe_->request_warmup();
  ASSERT_TRUE(asked) << asked.error().message;
  EXPECT_EQ(*asked, probe_->status().instance_id);
  // The child has no handler for it: its end proves that the signal came. It left no note, so its end is a fault.
  ASSERT_TRUE(becomes(State::kError));
  int status = 0;
  EXPECT_EQ(::waitpid(child_, &status, 0), child_);
  EXPECT_EQ(WTERMSIG(status), SIGUSR1);
}

TEST_F(ProbeTest, ARuntimeThatHasWarmedThePrefixCacheEndsByPlanAndIsNeverAnError) {
  runtime_.behaviour = Behaviour::kNeedsWarmup;
  auto note = os::EndNote::create(os::end_note_path(options_.canary.runtime_socket));
  ASSERT_TRUE(note);
  note->write(os::EndStep::kWarmed, Code::kOk);  // before its end, as the runtime does
  start_runtime();
  start_probe();
  ASSERT_TRUE(becomes(State::kNeedsWarmup));
  std::atomic<bool> failed{false};
  std::thread watcher([&] {
    Deadline deadline = Deadline::in_ms(10'000);
    for (Status now = probe_->status(); !ended_ && !deadline.passed();
         now = probe_->wait_change(now.version, Deadline::in_ms(50)))
      failed = failed || now.state == State::kError;
  });
  ASSERT_TRUE(probe_->request_warmup());
  EXPECT_TRUE(ends());
  watcher.join();
  EXPECT_FALSE(failed);
  EXPECT_EQ(probe_->status().state, State::kRecycling);
  EXPECT_TRUE(outcome_) << "the container ends at once, well";
}

TEST_F(ProbeTest, ARuntimeThatSaysItWarmedWhenNobodyAskedItIsAnError) {
  auto note = os::EndNote::create(os::end_note_path(options_.canary.runtime_socket));
  ASSERT_TRUE(note);
  note->write(os::EndStep::kWarmed, Code::kOk);
  start_runtime();
  start_probe();
  ASSERT_TRUE(becomes(State::kReady));
  ::kill(child_, SIGKILL);
  EXPECT_TRUE(becomes(State::kError));
  ASSERT_TRUE(ends());
  EXPECT_EQ(probe_->status().state, State::kError);
  EXPECT_EQ(probe_->status().message, "the runtime has exited: it has warmed the prefix cache, which nobody asked for");
  EXPECT_FALSE(outcome_) << "a fault, not a plan";
}

TEST_F(ProbeTest, ADeadRuntimesReasonIsToldEvenWhenTheContainerIsEndedAtOnce) {
  auto note = os::EndNote::create(os::end_note_path(options_.canary.runtime_socket));
  ASSERT_TRUE(note);
  note->write(os::EndStep::kStartingEngine, Code::kTooLarge);
  start_probe();
  ::kill(child_, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child_, &status, 0), child_);
  probe_->stop();  // as the container's init does at the runtime's end
  ASSERT_TRUE(ends());
  EXPECT_EQ(probe_->status().state, State::kError);
  EXPECT_EQ(probe_->status().message,
            "the runtime has exited: the engine could not start (vocabulary, memory for keys and values) (TOO_LARGE)");
}

TEST_F(ProbeTest, ARecycleDrainsTheRuntimeAndEndsTheProbe) {
  start_runtime();
  start_probe();
  ASSERT_TRUE(becomes(State::kReady));
  std::string instance = probe_->status().instance_id;
  int64_t start = monotonic_ms();
  EXPECT_EQ(probe_->request_recycle(5'000), instance);
  EXPECT_EQ(probe_->request_recycle(1), instance) << "a second request joins";
  EXPECT_EQ(probe_->status().state, State::kRecycling);
  ASSERT_TRUE(ends());
  EXPECT_LT(monotonic_ms() - start, 1'000);
  EXPECT_TRUE(outcome_) << outcome_.error().message;
  int status = 0;
  EXPECT_EQ(::waitpid(child_, &status, WNOHANG), child_);
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
}

TEST_F(ProbeTest, ARuntimeThatDoesNotDrainIsKilledAtTheLimit) {
  ::kill(child_, SIGSTOP);  // SIGTERM stays pending, once it has stopped
  int stopped = 0;
  ASSERT_EQ(::waitpid(child_, &stopped, WUNTRACED), child_);
  ASSERT_TRUE(WIFSTOPPED(stopped));
  start_runtime();
  start_probe();
  ASSERT_TRUE(becomes(State::kReady));
  int64_t start = monotonic_ms();
  probe_->request_recycle(200);
  ASSERT_TRUE(ends());
  EXPECT_GE(monotonic_ms() - start, 180);
  int status = 0;
  EXPECT_EQ(::waitpid(child_, &status, 0), child_);
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

TEST_F(ProbeTest, ADeadRuntimeIsAnErrorAtOnceAndEndsTheContainerWhenNobodyAttends) {
  start_runtime();
  start_probe();
  ASSERT_TRUE(becomes(State::kReady));
  ::kill(child_, SIGKILL);
  EXPECT_TRUE(becomes(State::kError, 200));
  EXPECT_EQ(probe_->status().message, "the runtime has exited: it was killed or crashed");
  ASSERT_TRUE(ends());
  EXPECT_FALSE(outcome_);
}

TEST_F(ProbeTest, SpeaksItsProtocolAndStandardHealth) {
  start_runtime();
  start_probe();
  ProbeService service(*probe_);
  ProbeHealthService health(*probe_);
  auto server = rpc::UnixGrpcServer::start(folder_ + "/probe.sock", {&service, &health});
  ASSERT_TRUE(server) << server.error().message;
  ASSERT_TRUE(becomes(State::kReady));
  auto channel = rpc::connect(folder_ + "/probe.sock", Deadline::in_ms(1'000));
  ASSERT_TRUE(channel);
  auto stub = v1::StatusProbe::NewStub(*channel);
  auto health_stub = ::grpc::health::v1::Health::NewStub(*channel);
  {
    grpc::ClientContext context;
    ::grpc::health::v1::HealthCheckResponse reply;
    ASSERT_TRUE(health_stub->Check(&context, {}, &reply).ok());
    EXPECT_EQ(reply.status(), ::grpc::health::v1::HealthCheckResponse::SERVING);
  }
  {
    grpc::ClientContext context;
    v1::CanaryReply reply;
    ASSERT_TRUE(stub->Canary(&context, {}, &reply).ok());
    EXPECT_TRUE(reply.passed()) << reply.message();
  }
  grpc::ClientContext watching;
  auto reader = stub->WatchStatus(&watching, {});
  v1::ProbeStatus status;
  ASSERT_TRUE(reader->Read(&status));
  EXPECT_EQ(status.state(), v1::ProbeStatus::READY);
  EXPECT_EQ(status.model(), "m");
  {
    grpc::ClientContext context;
    v1::RecycleReply reply;
    ASSERT_TRUE(stub->Recycle(&context, {}, &reply).ok());
    EXPECT_EQ(reply.instance_id(), status.instance_id());
  }
  do ASSERT_TRUE(reader->Read(&status));
  while (status.state() != v1::ProbeStatus::RECYCLING);
  {
    grpc::ClientContext context;
    ::grpc::health::v1::HealthCheckResponse reply;
    ASSERT_TRUE(health_stub->Check(&context, {}, &reply).ok());
    EXPECT_EQ(reply.status(), ::grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  }
  watching.TryCancel();
  server->stop(Deadline::in_ms(500));
}

}  // namespace
}  // namespace tie::probe
