// cloudboardd: the node's public face. Lets requests in, keeps replays out, and passes ciphertext between clients and
// per-request helpers. Holds no request key and no plaintext. Source: spec, "CloudBoard".
#include <CLI/CLI.hpp>
#include <cstdio>

#include "os/log.h"
#include "os/open_files.h"
#include "os/process.h"
#include "os/serving_mode.h"
#include "request/cloudboardd/server.h"

namespace {

constexpr int64_t kDrainMs = 10'000;

tie::Result<void> run(const tie::request::cloudboard::ServerConfig& config) {
  using namespace tie;
  TIE_CHECK_OK(os::harden_process());
  os::raise_open_file_limit();
  TIE_TRY(os::Fd termination, os::termination_signal_fd());
  TIE_TRY(auto server, request::cloudboard::Server::start(config));
  TIE_CHECK_OK(os::enter_serving_mode(os::ServingMode::kDaemon));
  TIE_LOG("cloudboardd", "listening on port {}", server->port());
  os::notify_ready();
  while (!os::wait_readable(termination.get(), Deadline::in_ms(3'600'000))) {
  }
  server->stop(kDrainMs);
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  tie::request::cloudboard::ServerConfig config;
  CLI::App app("The node's public face: lets sealed requests in and passes them to per-request processes.");
  app.add_option("--listen", config.listen, "address of the public gRPC port")->capture_default_str();
  app.add_option("--jobhelper-socket", config.node.helper_socket, "a connection here starts one cb_jobhelper")
      ->required();
  app.add_option("--authorize-socket", config.node.authorize_socket, "workload_servicesd: tickets")->required();
  app.add_option("--claims-socket", config.node.claims_socket, "workload_servicesd: evidence")->required();
  app.add_option("--cache-socket", config.node.cache_socket, "cache_stored: opened for each request that is let in");
  app.add_option("--control-socket", config.control_socket, "for tie-controllerd and workload_servicesd")->required();
  app.add_option("--state-dir", config.node.state_dir, "replay records, on a tmpfs")->required();
  app.add_option("--prewarmed", config.node.prewarmed, "pairs kept warm")
      ->capture_default_str()
      ->check(CLI::Range(0, 64));
  app.add_option("--max-requests", config.node.max_requests, "never more in flight than this")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  app.add_option("--max-connections", config.max_connections, "open client connections")
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  CLI11_PARSE(app, argc, argv);
  auto result = run(config);
  if (result) return 0;
  std::fprintf(stderr, "cloudboardd: %s\n", result.error().message.c_str());
  return 1;
}
