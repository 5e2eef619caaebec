// key_protectiond: flags, hardening, the gRPC server, the reaper.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "keys/key_protectiond/kps_server.h"
#include "keys/key_protectiond/kps_service.h"
#include "keys/key_protectiond/limits.h"
#include "keys/tpm/tpm_signer.h"
#include "os/log.h"
#include "os/process.h"
#include "os/serving_mode.h"

namespace {

using namespace tie;

Result<std::unique_ptr<attestation::EvidenceSigner>> signer_of(const std::string& tpm) {
  if (tpm.empty()) return std::make_unique<attestation::SoftwareSigner>();
  return tpm::TpmSigner::open(tpm, "");
}

Result<void> serve(const kps::ListenOptions& options, const std::string& tpm) {
  TIE_CHECK_OK(os::harden_process());
  TIE_TRY(const os::Fd stop, os::termination_signal_fd());
  kps::KeyStore store;
  TIE_TRY(const auto signer, signer_of(tpm));
  kps::KpsService service(store, *signer);
  TIE_TRY(const auto server, kps::KpsServer::start(options, service));
  TIE_CHECK_OK(os::enter_serving_mode(os::ServingMode::kDaemon));
  os::notify_ready();
  while (!os::wait_readable(stop.get(), Deadline::in_ms(kps::kReapIntervalMs))) store.reap();
  server->stop(Deadline::in_ms(kps::kStopGraceMs));
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  kps::ListenOptions options;
  keys::TlsIdentity tls;
  std::string tpm;
  CLI::App app{
      "Holds the private request keys of a node, and answers decapsulations only sealed to the key's binding key."};
  app.add_option("--socket", options.socket, "kps.sock to serve");
  app.add_option("--peer-uid", options.peer_uid,
                 "only this user may connect to the socket (where workload_servicesd has a user of its own)");
  auto* address = app.add_option("--tcp-address", options.tcp_address,
                                 "HOST:PORT to serve under mutual TLS, for a workload on another host");
  app.add_option("--tls-certificate", tls.certificate, "PEM file with this service's certificate")->needs(address);
  app.add_option("--tls-key", tls.private_key, "PEM file with its private key")->needs(address);
  app.add_option("--tls-authority", tls.authority, "PEM file with the authority of both sides' certificates")
      ->needs(address);
  app.add_option("--tls-peer-name", tls.peer_name, "DNS name that the workload's certificate must carry")
      ->needs(address);
  app.add_option("--tpm", tpm, "device or socket of a TPM 2.0: evidence is of kind tpm, not software");
  CLI11_PARSE(app, argc, argv);
  if (!options.tcp_address.empty()) options.tls = tls;
  auto outcome = serve(options, tpm);
  if (outcome) return 0;
  TIE_LOG("key_protectiond", "ended: {}",
          outcome.error().code);  // the sentence below may name paths: a launcher's log drops it
  std::fprintf(stderr, "key_protectiond: %s\n", outcome.error().message.c_str());
  return 1;
}
