// tie-status-probe: flags, hardening, the socket, the canary loop. Its exit ends the container.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "os/log.h"
#include "os/process.h"
#include "os/serving_mode.h"
#include "supervision/rpc/unix_grpc.h"
#include "supervision/status_probe/probe_service.h"

namespace {

using namespace tie;

constexpr int64_t kTellMs = 300;

struct Flags {
  std::string socket;
  probe::ProbeOptions probe;
};

// Nothing to save, and the container's end must not wait for calls in progress.
[[noreturn]] void leave(const Result<void>& outcome) {
  if (!outcome) {
    TIE_LOG("tie-status-probe", "ends with {}", outcome.error().code);
    std::fprintf(stderr, "tie-status-probe: %s\n", outcome.error().message.c_str());
  }
  std::fflush(stderr);
  ::_exit(outcome ? 0 : 1);
}

Result<void> serve(Flags flags) {
  TIE_CHECK_OK(os::harden_process());
  TIE_TRY(os::Fd stop, os::termination_signal_fd());
  if (const char* pid = ::getenv("TIE_RUNTIME_PID"); pid != nullptr && flags.probe.runtime_pid == 0)
    flags.probe.runtime_pid = static_cast<pid_t>(::atoi(pid));
  probe::Probe probe(flags.probe);
  probe::ProbeService service(probe);
  probe::ProbeHealthService health(probe);
  TIE_TRY(rpc::UnixGrpcServer server, rpc::UnixGrpcServer::start(flags.socket, {&service, &health}));
  TIE_CHECK_OK(os::enter_serving_mode(os::ServingMode::kDaemon));
  os::notify_ready();
  std::thread([&probe, fd = stop.get()] {
    (void)os::wait_readable(fd, Deadline::in_ms(INT64_MAX / 4));
    probe.stop();
  }).detach();
  auto outcome = probe.run();
  // Who watches learns why the runtime is gone before the container is.
  if (probe.status().state == probe::State::kError) server.stop(Deadline::in_ms(kTellMs));
  leave(outcome);
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app{"Health and recycle interface of one afm-runtime; runs inside its container."};
  app.add_option("--runtime-socket", flags.probe.canary.runtime_socket, "the runtime's gRPC socket")->required();
  app.add_option("--socket", flags.socket, "probe.sock to serve")->required();
  app.add_option("--model", flags.probe.canary.model, "the served model")->required();
  app.add_option("--runtime-pid", flags.probe.runtime_pid,
                 "the runtime's process (default: TIE_RUNTIME_PID, else who listens on the runtime's socket)");
  app.add_option("--ready-interval-ms", flags.probe.ready_interval_ms, "between canaries of a ready runtime")
      ->check(CLI::Range(20, 600'000));
  app.add_option("--canary-deadline-ms", flags.probe.canary_deadline_ms, "for one canary")
      ->check(CLI::Range(50, 600'000));
  app.add_option("--drain-ms", flags.probe.default_drain_ms, "longest drain when the controller names none")
      ->check(CLI::Range(0, 3'600'000));
  CLI11_PARSE(app, argc, argv);
  leave(serve(std::move(flags)));
}
