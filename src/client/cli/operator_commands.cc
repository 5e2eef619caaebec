#include "client/cli/operator_commands.h"

#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "client/cli/asset_commands.h"
#include "client/cli/command.h"
#include "client/cli/prompt_commands.h"
#include "client/cli/prove_stateless_command.h"
#include "client/proxy/http_server.h"
#include "controller.grpc.pb.h"
#include "os/process.h"
#include "supervision/launcher/node_status.h"
#include "supervision/launcher/release_manifest.h"
#include "supervision/launcher/run_directory.h"
#include "supervision/rpc/unix_grpc.h"

namespace tie::cli {
namespace {

constexpr int64_t kConnectMs = 2'000;
constexpr int64_t kStatusMs = 5'000;
constexpr int64_t kLongestCallMs = 2 * 3'600'000;

// Where this machine's node has it; the launcher decides.
std::string default_socket() {
  auto run = launcher::choose_run_directory("");
  return launcher::socket_path(run ? *run : "/run/tie", "controller");
}

std::string duration(uint64_t ms) {
  if (ms < 1'000) return fmt::format("{} ms", ms);
  if (ms < 120'000) return fmt::format("{:.1f} s", static_cast<double>(ms) / 1e3);
  if (ms < 7'200'000) return fmt::format("{} min", ms / 60'000);
  return fmt::format("{:.1f} h", static_cast<double>(ms) / 3.6e6);
}

void print_status(const v1::NodeStatus& status) {
  fmt::print("node        {}{}{}, for {}\n", status.state(), status.reason().empty() ? "" : ": ", status.reason(),
             duration(status.state_since_ms()));
  fmt::print("requests    {} in flight, {} allowed{}{}\n", status.in_flight(), status.max_requests(),
             status.drained_by_operator() ? " (drained; `tie node resume` takes requests again)" : "",
             status.load_unknown() ? " (as last heard: cloudboardd does not answer now)" : "");
  std::string next =
      status.next_recycle_in_ms() == 0 ? "none planned" : "next in " + duration(status.next_recycle_in_ms());
  std::string last = status.recycle_count() == 0 ? "" : ", the last took " + duration(status.last_recycle_ms());
  fmt::print("recycles    {}{}, {}\n", status.recycle_count(), last, next);
  fmt::print("\n{:<32} {:<16} {:<10} {}\n", "component", "state", "since", "");
  for (const v1::ComponentStatus& component : status.components())
    fmt::print("{:<32} {:<16} {:<10} {}\n", component.name(), component.state(), duration(component.since_ms()),
               component.message());
  for (const v1::ComponentStatus& component : status.components())
    if (!component.last_fault().empty())
      fmt::print("\nlast fault of {}, {} ago: {}\n", component.name(), duration(component.last_fault_ago_ms()),
                 component.last_fault());
  for (const std::string& model : status.unserved_models())
    fmt::print(
        "\n{} is new and this node was started without it. To serve it:\n"
        "  tie down && tie up        with systemd: systemctl restart tie-controllerd\n",
        model);
}

struct Settings {
  std::string socket;
  std::string reason;
  std::string listen;
  uint32_t limit_ms = 0;
  bool watch = false;
};

using Stub = v1::Controller::Stub;
using Call = std::function<grpc::Status(Stub&, grpc::ClientContext&, v1::NodeStatus&)>;

// kNotReady, with the next step: there is none.
Result<std::shared_ptr<grpc::Channel>> connect_controller(const Settings& settings) {
  auto channel =
      rpc::connect(settings.socket.empty() ? default_socket() : settings.socket, Deadline::in_ms(kConnectMs));
  if (channel) return channel;
  return fail(Code::kNotReady,
              fmt::format("the controller is not there ({}); start the node with `tie up`, or name its "
                          "run directory in TIE_RUN",
                          channel.error().message));
}

// One call on a connection of its own; prints the status it brings.
int run(const Settings& settings, int64_t limit_ms, const Call& call) {
  auto channel = connect_controller(settings);
  if (!channel) {
    fmt::print(stderr, "tie node: {}\n", channel.error().message);
    return kExitNotReady;
  }
  auto stub = v1::Controller::NewStub(*channel);
  grpc::ClientContext context;
  context.set_deadline(rpc::call_deadline(limit_ms));
  v1::NodeStatus status;
  grpc::Status outcome = call(*stub, context, status);
  if (!outcome.ok()) {
    fmt::print(stderr, "tie node: {}\n", outcome.error_message());
    return 1;
  }
  if (!status.state().empty()) print_status(status);
  return status.state() == "ready" || status.drained_by_operator() ? kExitOk : kExitNotReady;
}

Result<std::string> fetch_metrics(const Settings& settings) {
  TIE_TRY(auto channel, connect_controller(settings));
  grpc::ClientContext context;
  context.set_deadline(rpc::call_deadline(kStatusMs));
  v1::NodeMetrics metrics;
  auto outcome = v1::Controller::NewStub(channel)->GetMetrics(&context, {}, &metrics);
  if (!outcome.ok()) return std::unexpected(rpc::to_error(outcome));
  return metrics.text();
}

// Every scrape asks the controller; when it is away the scrape fails, which is what an alert wants to know.
Result<void> serve_metrics(const Settings& settings) {
  size_t colon = settings.listen.rfind(':');
  client::HttpServerOptions options;
  options.host = settings.listen.substr(0, colon);
  options.port = colon == std::string::npos ? 0 : std::atoi(settings.listen.c_str() + colon + 1);
  if (options.port <= 0 || options.port > 65535 || (options.host != "127.0.0.1" && options.host != "localhost"))
    return fail(Code::kBadRequest, "--listen wants 127.0.0.1:PORT");
  TIE_TRY(os::Fd stop, os::termination_signal_fd());
  auto answer = [&settings](const client::HttpRequest& request, client::HttpReply& reply) {
    reply.content_type = "text/plain; version=0.0.4";
    auto text = fetch_metrics(settings);
    reply.status = request.path != "/metrics" ? 404 : text ? 200 : 503;
    if (reply.status == 200) reply.body = *text;
  };
  auto refuse = [](int, const std::string&, client::HttpReply& reply) { reply.content_type = "text/plain"; };
  TIE_TRY(auto server, client::HttpServer::start(options, answer, refuse));
  fmt::print("http://{}/metrics\n", settings.listen);
  std::fflush(stdout);
  return os::wait_readable(stop.get(), Deadline::in_ms(INT64_MAX / 4));
}

int print_metrics(const Settings& settings) {
  if (!settings.listen.empty()) {
    auto served = serve_metrics(settings);
    if (!served) fmt::print(stderr, "tie node metrics: {}\n", served.error().message);
    return served ? 0 : 1;
  }
  auto text = fetch_metrics(settings);
  if (!text) {
    fmt::print(stderr, "tie node metrics: {}\n", text.error().message);
    return text.error().code == Code::kNotReady ? int(kExitNotReady) : 1;
  }
  fmt::print("{}", *text);
  return 0;
}

// What stands between a change of the assets and a node that could take it. Nothing: it may be asked.
Result<void> prepare_reload(const Settings& settings) {
  if (!settings.socket.empty()) return {};
  TIE_TRY(std::string run, launcher::choose_run_directory(""));
  auto status = launcher::read_node_status(run);
  if (!status && status.error().code != Code::kNotReady) return std::unexpected(std::move(status.error()));
  if (status) {
    // Its processes see the folders of these models as they were at the start, and no later ones in their place.
    if (status->models_fixed)
      return fail(Code::kFailedPrecondition,
                  "this node was started with a list of models (`models` in node.toml, --model), so it keeps their "
                  "files until it starts again: tie down, then tie up");
    return {};
  }
  // The systemd profile serves copies in memory, which root makes.
  TIE_TRY(std::string prefix, launcher::installed_prefix());
  const std::string stage = prefix + "/libexec/tie/tie-stage-assets";
  if (run != "/run/tie" || ::access(stage.c_str(), X_OK) != 0) return {};
  if (::geteuid() != 0) {
    fmt::print(stderr, "Changed assets are staged by root first: sudo {}\n", stage);
    return {};
  }
  if (std::system(("'" + stage + "'").c_str()) == 0) return {};
  return fail(Code::kFailedPrecondition, "the assets were not staged, so the node keeps what it serves");
}

int watch(const Settings& settings) {
  return run(settings, kLongestCallMs, [](Stub& stub, grpc::ClientContext& context, v1::NodeStatus& last) {
    auto reader = stub.WatchStatus(&context, {});
    v1::NodeStatus status;
    std::string shown;
    while (reader->Read(&status)) {
      std::string line = fmt::format("{:<13} {}", status.state(), status.reason());
      for (const v1::ComponentStatus& component : status.components())
        line += fmt::format("  {}={}", component.name(), component.state());
      if (line != shown) fmt::print("{}\n", line);
      shown = line;
      std::fflush(stdout);
    }
    last.Clear();
    return reader->Finish();
  });
}

void add(CLI::App& node, int& exit_code, std::shared_ptr<Settings> settings, const char* name, const char* help,
         int64_t limit_ms, Call call) {
  node.add_subcommand(name, help)->callback([=, &exit_code] { exit_code = run(*settings, limit_ms, call); });
}

}  // namespace

void add_node_commands(CLI::App& app, int& exit_code) {
  auto settings = std::make_shared<Settings>();
  CLI::App* node = app.add_subcommand("node", "look at and operate this node");
  node->require_subcommand(1);
  node->fallthrough();
  node->add_option("--socket", settings->socket,
                   "the controller's socket (default: the one in this machine's run directory, $TIE_RUN)");

  CLI::App* status = node->add_subcommand("status", "the state of the node and its parts");
  status->add_flag("--watch", settings->watch, "follow every change");
  status->callback([settings, &exit_code] {
    exit_code = settings->watch
                    ? watch(*settings)
                    : run(*settings, kStatusMs, [](Stub& stub, grpc::ClientContext& context, v1::NodeStatus& out) {
                        return stub.GetStatus(&context, {}, &out);
                      });
  });

  CLI::App* recycle = node->add_subcommand(
      "recycle", "restart the runtime without losing a request; returns when the node is ready again");
  recycle->add_option("--reason", settings->reason, "shown in the status");
  recycle->add_option("--drain-limit-ms", settings->limit_ms, "longest wait for requests in flight");
  recycle->callback([settings, &exit_code] {
    exit_code = run(*settings, kLongestCallMs, [&](Stub& stub, grpc::ClientContext& context, v1::NodeStatus& out) {
      v1::NodeRecycleRequest request;
      request.set_reason(settings->reason);
      request.set_drain_limit_ms(settings->limit_ms);
      return stub.Recycle(&context, request, &out);
    });
  });

  CLI::App* drain = node->add_subcommand("drain", "take no new requests; returns when none is in flight");
  drain->add_option("--wait-ms", settings->limit_ms, "longest wait");
  drain->callback([settings, &exit_code] {
    int64_t began_ms = monotonic_ms();
    exit_code = run(*settings, kLongestCallMs, [&](Stub& stub, grpc::ClientContext& context, v1::NodeStatus& out) {
      v1::NodeDrainRequest request;
      request.set_wait_ms(settings->limit_ms);
      return stub.Drain(&context, request, &out);
    });
    if (exit_code == kExitOk)
      fmt::print("\ndrained after {}: no request is in flight and none is taken, until `tie node resume`\n",
                 duration(static_cast<uint64_t>(monotonic_ms() - began_ms)));
  });

  CLI::App* metrics = node->add_subcommand("metrics", "what Prometheus scrapes; never anything of a request");
  metrics->add_option("--listen", settings->listen, "serve it to a scraper at /metrics of this loopback ADDRESS:PORT");
  metrics->callback([settings, &exit_code] { exit_code = print_metrics(*settings); });
  add_asset_commands(app, exit_code);
  add_prompt_commands(*node, exit_code);
  add_prove_stateless_command(*node, exit_code);
  add(*node, exit_code, settings, "resume", "take requests again after a drain", kLongestCallMs,
      [](Stub& stub, grpc::ClientContext& context, v1::NodeStatus& out) { return stub.Resume(&context, {}, &out); });
  node->add_subcommand("reload", "look at the assets now and recycle with them")->callback([settings, &exit_code] {
    if (auto prepared = prepare_reload(*settings); !prepared) {
      fmt::print(stderr, "tie node reload: {}\n", prepared.error().message);
      exit_code = kExitFailed;
      return;
    }
    exit_code = run(*settings, kLongestCallMs, [](Stub& stub, grpc::ClientContext& context, v1::NodeStatus& out) {
      return stub.Reload(&context, {}, &out);
    });
  });
}

}  // namespace tie::cli
