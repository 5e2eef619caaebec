// gpuhealthd: flags, hardening, choice of provider, the socket.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "os/log.h"
#include "os/process.h"
#include "os/serving_mode.h"
#include "supervision/gpuhealthd/chosen_provider.h"
#include "supervision/gpuhealthd/health_service.h"
#include "supervision/rpc/unix_grpc.h"

namespace {

using namespace tie;

struct Flags {
  std::string socket, provider = "auto", nvml = "libnvidia-ml.so.1";
  gpuhealth::PollerOptions poller;
};

Result<void> serve(const Flags& flags) {
  TIE_CHECK_OK(os::harden_process());
  TIE_TRY(os::Fd stop, os::termination_signal_fd());
  gpuhealth::Poller poller(gpuhealth::make_chosen_provider(flags.provider, flags.nvml), flags.poller);
  poller.wait_first(Deadline::in_ms(flags.poller.hang_ms));
  gpuhealth::NodeVerdict first = poller.verdict();
  TIE_LOG("gpuhealthd", "provider {}, {} devices, {}", os::LogWord(first.provider), first.devices.size(),
          os::LogWord(gpuhealth::health_name(first.health)));
  gpuhealth::HealthService service(poller);
  TIE_TRY(rpc::UnixGrpcServer server, rpc::UnixGrpcServer::start(flags.socket, {&service}));
  TIE_CHECK_OK(os::enter_serving_mode(os::ServingMode::kDaemon));
  os::notify_ready();
  (void)os::wait_readable(stop.get(), Deadline::in_ms(INT64_MAX / 4));
  poller.stop();
  server.stop(Deadline::in_ms(500));
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app{"Watches this node's devices and serves their verdict."};
  app.add_option("--socket", flags.socket, "gpuhealth.sock to serve")->required();
  app.add_option("--provider", flags.provider, "auto, nvml or cpu")->check(CLI::IsMember({"auto", "nvml", "cpu"}));
  app.add_option("--nvml", flags.nvml, "NVIDIA's management library");
  app.add_option("--poll-ms", flags.poller.interval_ms, "time between polls")->check(CLI::Range(10, 60'000));
  app.add_option("--hang-ms", flags.poller.hang_ms, "a poll that takes longer makes the devices unavailable")
      ->check(CLI::Range(100, 600'000));
  CLI11_PARSE(app, argc, argv);
  auto outcome = serve(flags);
  if (!outcome) {
    TIE_LOG("gpuhealthd", "ends with {}", outcome.error().code);
    std::fprintf(stderr, "gpuhealthd: %s\n", outcome.error().message.c_str());
  }
  std::fflush(stderr);
  // A driver call may hang in the polling thread for ever: leave without waiting for it.
  ::_exit(outcome ? 0 : 1);
}
