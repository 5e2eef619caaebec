// key_protectiond: flags, hardening, the gRPC server, the reaper.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "keys/key_protectiond/kps_service.h"
#include "keys/key_protectiond/limits.h"
#include "os/process.h"
#include "supervision/rpc/unix_grpc.h"

namespace {

using namespace tie;

Result<void> serve(const std::string& socket) {
  TIE_CHECK_OK(os::harden_process());
  TIE_TRY(const os::Fd stop, os::termination_signal_fd());
  kps::KeyStore store;
  kps::KpsService service(store);
  TIE_TRY(rpc::UnixGrpcServer server, rpc::UnixGrpcServer::start(socket, {&service}, kps::kMaxConcurrentCalls));
  os::notify_ready();
  while (!os::wait_readable(stop.get(), Deadline::in_ms(kps::kReapIntervalMs))) store.reap();
  server.stop(Deadline::in_ms(kps::kStopGraceMs));
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  std::string socket;
  CLI::App app{"Holds the private request keys of a node, and answers decapsulations only sealed to the key's binding key."};
  app.add_option("--socket", socket, "kps.sock to serve")->required();
  CLI11_PARSE(app, argc, argv);
  auto outcome = serve(socket);
  if (outcome) return 0;
  std::fprintf(stderr, "key_protectiond: %s\n", outcome.error().message.c_str());
  return 1;
}
