// tie-controllerd: flags, hardening, the node controller, the operator's socket.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/random.h"
#include "os/log.h"
#include "os/process.h"
#include "os/serving_mode.h"
#include "supervision/controllerd/controller_service.h"
#include "supervision/controllerd/node_controller.h"
#include "supervision/rpc/unix_grpc.h"

namespace {

using namespace tie;

struct Flags {
  std::string socket;
  std::vector<std::string> probes;
  double recycle_interval_s = 3600;
  controller::NodeOptions node;
};

Result<std::vector<controller::ProbeTarget>> parse_probes(const std::vector<std::string>& texts) {
  std::vector<controller::ProbeTarget> out;
  for (const std::string& text : texts) {
    size_t at = text.find('=');
    if (at == 0 || at == std::string::npos || at + 1 == text.size())
      return fail(Code::kBadRequest, "--probe wants MODEL=SOCKET, not '" + text + "'");
    out.push_back({text.substr(0, at), text.substr(at + 1)});
  }
  return out;
}

Result<void> serve(Flags flags) {
  TIE_CHECK_OK(os::harden_process());
  TIE_TRY(os::Fd stop, os::termination_signal_fd());
  TIE_TRY(flags.node.probes, parse_probes(flags.probes));
  flags.node.core.recycle_interval_ms = static_cast<int64_t>(flags.recycle_interval_s * 1000);
  flags.node.core.jitter_seed = random_u64();
  // Ready for the launcher and systemd means: this node serves.
  flags.node.on_first_ready = [] { os::notify_ready(); };
  if (flags.node.node_id.empty()) flags.node.node_id = random_hex(8);
  controller::NodeController node(flags.node);
  controller::ControllerService service(node);
  node.start();
  TIE_TRY(rpc::UnixGrpcServer server, rpc::UnixGrpcServer::start(flags.socket, {&service}));
  TIE_CHECK_OK(os::enter_serving_mode(os::ServingMode::kDaemon));
  (void)os::wait_readable(stop.get(), Deadline::in_ms(INT64_MAX / 4));
  // The registration ends with its stream, and cloudboardd stops serving at once.
  node.stop();
  server.stop(Deadline::in_ms(200));
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  controller::CoreOptions& core = flags.node.core;
  CLI::App app{"Supervises the inference stack of this node."};
  app.add_option("--socket", flags.socket, "controller.sock to serve (operator)")->required();
  app.add_option("--control-socket", flags.node.cloudboard_socket, "cloudboardd's cloudboard-control.sock")->required();
  app.add_option("--gpuhealth-socket", flags.node.gpuhealth_socket, "gpuhealthd's socket")->required();
  app.add_option("--owner-socket", flags.node.owner_socket, "tie-model-owner's socket")->required();
  app.add_option("--probe", flags.probes, "MODEL=SOCKET of a tie-status-probe; once for each served model")->required();
  app.add_option("--node-id", flags.node.node_id, "name of this node (default: random)");
  app.add_option("--max-requests", core.max_requests, "requests that may be in flight")->check(CLI::Range(1, 100'000));
  app.add_option("--recycle-interval-s", flags.recycle_interval_s, "time between recycles; 0 = never by time")
      ->check(CLI::Range(0.0, 1e9));
  app.add_option("--recycle-jitter", core.recycle_jitter,
                 "share of the interval by which each recycle is drawn earlier or later")
      ->check(CLI::Range(0.0, 0.9));
  app.add_option("--drain-limit-ms", core.drain_limit_ms, "longest wait for in-flight requests")
      ->check(CLI::Range(0, 86'400'000));
  app.add_option("--start-limit-ms", core.start_limit_ms, "longest start of a runtime")
      ->check(CLI::Range(1, 86'400'000));
  CLI11_PARSE(app, argc, argv);
  auto outcome = serve(std::move(flags));
  if (!outcome) {
    TIE_LOG("tie-controllerd", "ends with {}", outcome.error().code);
    std::fprintf(stderr, "tie-controllerd: %s\n", outcome.error().message.c_str());
  }
  return outcome ? 0 : 1;
}
