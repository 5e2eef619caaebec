// workload_servicesd: flags, hardening, the object graph, the three sockets, the keeper's loop.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <thread>

#include "keys/framed_server/framed_server.h"
#include "keys/tokens/token_gate.h"
#include "keys/tpm/tpm_signer.h"
#include "keys/workload_servicesd/asset_watch.h"
#include "keys/workload_servicesd/key_keeper.h"
#include "keys/workload_servicesd/limits.h"
#include "keys/workload_servicesd/operator_face.h"
#include "keys/workload_servicesd/publisher.h"
#include "keys/workload_servicesd/request_desk.h"
#include "os/log.h"
#include "os/process.h"
#include "os/serving_mode.h"

namespace {

using namespace tie;

struct Flags {
  std::string decap_socket, authorize_socket, claims_socket, kps_socket, control_socket, release_manifest, assets,
      served, tokens, tpm, measurements, operator_socket;
  std::vector<std::string> suites = {"xwing"};
  wsd::KeeperTimes times;
  int64_t ticket_ttl_ms = wsd::kTicketTtlMs;
  size_t max_requests_per_key = wsd::kMaxSeenPerKey;
  std::string kps_address;
  keys::TlsIdentity kps_tls;
  std::optional<uint32_t> decap_peer_uid, authorize_peer_uid, operator_uid;
};

std::vector<crypto::KemId> kems_of(const std::vector<std::string>& suites) {
  std::vector<crypto::KemId> out;
  for (const std::string& suite : suites)
    out.push_back(suite == "xwing" ? crypto::KemId::kXWing : crypto::KemId::kX25519HkdfSha256);
  return out;
}

// The challenge that clients have one-time tokens made for; empty while tokens are off.
Result<Bytes> token_challenge(const std::string& folder) {
  if (folder.empty()) return Bytes{};
  auto gate = tokens::TokenGate::open(folder);
  if (!gate && gate.error().code == Code::kNotFound) return Bytes{};
  if (!gate) return std::unexpected(gate.error());
  return gate->challenge();
}

// What the node's claims may state, into the TPM before they state it.
Result<void> measure(tpm::TpmSigner* tpm, const wsd::NodeFacts& facts) {
  if (tpm == nullptr) return {};
  using attestation::Measured;
  std::vector<attestation::Measurement> what = {{Measured::kRelease, facts.release_id}};
  for (const crypto::Digest& model : facts.model_ids()) what.push_back({Measured::kModel, model});
  for (const crypto::Digest& prompt : facts.prompt_digests) what.push_back({Measured::kPrompt, prompt});
  return tpm->measure(what);
}

// A file that was touched, or linked to once more, and holds what it held is no change: the node's claims are the same.
void take_changed(wsd::KeyKeeper& keeper, wsd::NodeFacts facts, tpm::TpmSigner* tpm) {
  facts.token_challenge = keeper.facts().token_challenge;
  if (facts == keeper.facts()) return;
  TIE_LOG("workload_servicesd", "models or prompts changed; making new keys");
  if (auto measured = measure(tpm, facts); !measured)
    TIE_LOG("workload_servicesd", "measuring the changed assets: {}", measured.error().code);
  keeper.set_facts(std::move(facts));
}

// Steps the keeper until told to stop; ready at the first key, so that whoever waits for this daemon finds one.
void keep_keys(wsd::KeyKeeper& keeper, wsd::KeyRing& ring, wsd::AssetWatch& assets, tpm::TpmSigner* tpm, int stop) {
  bool ready = false, failing = false;
  Deadline next_look = Deadline::in_ms(wsd::kAssetLookMs);
  while (!os::wait_readable(stop, Deadline::in_ms(ready ? wsd::kLinkPollMs : 20))) {
    if (next_look.passed()) {
      if (auto facts = assets.look()) take_changed(keeper, std::move(*facts), tpm);
      next_look = Deadline::in_ms(wsd::kAssetLookMs);
    }
    const auto outcome = keeper.step(monotonic_ms(), wall_clock_ms());
    if (!outcome && !failing) TIE_LOG("workload_servicesd", "keys: {}; trying again", outcome.error().code);
    failing = !outcome;
    if (!ready && ring.size() != 0) {
      ready = true;
      os::notify_ready();
    }
  }
}

Result<std::unique_ptr<wsd::KeyService>> key_service_of(const Flags& flags) {
  if (flags.kps_socket.empty() == flags.kps_address.empty())
    return fail(Code::kBadRequest, "give either --kps-socket or --kps-address");
  if (!flags.kps_socket.empty()) return wsd::connect_key_service(flags.kps_socket);
  return wsd::connect_remote_key_service(flags.kps_address, flags.kps_tls);
}

Result<void> serve(const Flags& flags) {
  TIE_CHECK_OK(os::harden_process());
  TIE_TRY(const os::Fd stop, os::termination_signal_fd());
  wsd::AssetWatch assets(flags.release_manifest, flags.assets,
                         flags.served);  // before the facts: a change in between is seen
  TIE_TRY(wsd::NodeFacts facts, wsd::read_node_facts(flags.release_manifest, flags.assets, flags.served));
  TIE_TRY(facts.token_challenge, token_challenge(flags.tokens));
  const attestation::SoftwareSigner software;
  std::unique_ptr<tpm::TpmSigner> tpm;
  if (!flags.tpm.empty()) {
    TIE_TRY(tpm, tpm::TpmSigner::open(flags.tpm, flags.measurements));
    TIE_CHECK_OK(measure(tpm.get(), facts));
  }
  const attestation::EvidenceSigner& signer =
      tpm != nullptr ? static_cast<const attestation::EvidenceSigner&>(*tpm) : software;
  TIE_TRY(const auto service, key_service_of(flags));
  wsd::KeyRing ring(flags.max_requests_per_key);
  wsd::TicketBook tickets(flags.ticket_ttl_ms);
  wsd::KeyKeeper keeper(*service, ring, signer, std::move(facts), kems_of(flags.suites), flags.times);
  wsd::RequestDesk desk(*service, ring, tickets, signer);

  const auto on = [&desk](bool (*serve)(wsd::RequestDesk&, int)) {
    return [&desk, serve](int socket) { return serve(desk, socket); };
  };
  TIE_TRY(const auto authorize,
          keys::FramedServer::start(flags.authorize_socket, {wsd::kMaxAuthorizeConnections, flags.authorize_peer_uid},
                                    on(wsd::serve_authorize)));
  TIE_TRY(const auto decap,
          keys::FramedServer::start(flags.decap_socket, {wsd::kMaxDecapConnections, flags.decap_peer_uid},
                                    on(wsd::serve_decap)));
  TIE_TRY(const auto claims, keys::FramedServer::start(flags.claims_socket, {wsd::kMaxClaimsConnections, std::nullopt},
                                                       on(wsd::serve_claims)));
  wsd::OperatorFace face({kems_of(flags.suites), tpm != nullptr ? "tpm" : "software", wsd::hidden_memory_available(),
                          flags.times.lifetime_ms, flags.times.grace_ms},
                         ring,
                         {[&keeper](crypto::KemId kem) { keeper.rotate(kem); },
                          [&keeper](const crypto::Digest& id) { keeper.revoke(id); }});
  std::unique_ptr<keys::FramedServer> operators;
  if (!flags.operator_socket.empty()) {
    TIE_TRY(operators, keys::FramedServer::start(
                           flags.operator_socket, {wsd::kMaxOperatorConnections, std::nullopt},
                           [&](int socket) { return wsd::serve_operator(face, flags.operator_uid, socket); }));
  }
  wsd::Publisher publisher(flags.control_socket, ring, [&keeper](const crypto::Digest& id) { keeper.revoke(id); });
  std::thread publishing([&publisher] { publisher.run(); });
  TIE_CHECK_OK(os::enter_serving_mode(os::ServingMode::kDaemon));
  if (!wsd::hidden_memory_available())
    TIE_LOG("workload_servicesd", "no memfd_secret here: binding keys lie in locked memory");

  keep_keys(keeper, ring, assets, tpm.get(), stop.get());
  publisher.stop();
  publishing.join();
  ring.destroy_all();
  return {};
}

void add_options(CLI::App& app, Flags& flags) {
  app.add_option("--decap-socket", flags.decap_socket, "wsd-decap.sock to serve: helpers only")->required();
  app.add_option("--authorize-socket", flags.authorize_socket, "wsd-authorize.sock to serve: cloudboardd only")
      ->required();
  app.add_option("--claims-socket", flags.claims_socket, "wsd-claims.sock to serve: evidence over a challenge")
      ->required();
  app.add_option("--kps-socket", flags.kps_socket, "kps.sock of key_protectiond");
  app.add_option("--kps-address", flags.kps_address,
                 "HOST:PORT of a key_protectiond on another host, under mutual TLS");
  app.add_option("--kps-tls-certificate", flags.kps_tls.certificate, "PEM file with this node's certificate");
  app.add_option("--kps-tls-key", flags.kps_tls.private_key, "PEM file with its private key");
  app.add_option("--kps-tls-authority", flags.kps_tls.authority,
                 "PEM file with the authority of both sides' certificates");
  app.add_option("--kps-tls-peer-name", flags.kps_tls.peer_name,
                 "DNS name that the key service's certificate must carry");
  app.add_option("--control-socket", flags.control_socket, "cloudboard-control.sock of cloudboardd")->required();
  app.add_option("--release-manifest", flags.release_manifest, "the launcher's manifest of the installed files")
      ->required();
  app.add_option("--assets", flags.assets, "folder with models/NAME/ and prompts/")->required();
  app.add_option("--served", flags.served, "folder where tie-model-owner says what it hands out of each model");
  app.add_option("--tokens", flags.tokens, "folder with the token issuer's file and this node's context");
  auto* log = app.add_option("--measurements", flags.measurements, "file in memory with the log of what was measured");
  app.add_option("--tpm", flags.tpm, "device or socket of a TPM 2.0: evidence is of kind tpm, not software")
      ->needs(log);
  app.add_option("--operator-socket", flags.operator_socket, "wsd-operator.sock to serve: HTTP/JSON for operators");
  app.add_option("--operator-uid", flags.operator_uid, "only this user and root may make and destroy keys there");
  app.add_option("--decap-peer-uid", flags.decap_peer_uid,
                 "only this user may decapsulate (where the helpers have a user of their own)");
  app.add_option("--authorize-peer-uid", flags.authorize_peer_uid, "only this user may register tickets");
  app.add_option("--suite", flags.suites, "request key suites, preferred first")
      ->check(CLI::IsMember({"xwing", "x25519"}));
  app.add_option("--key-lifetime-ms", flags.times.lifetime_ms, "life of a request key; replaced at half of it")
      ->check(CLI::Range(1000, 7 * 24 * 3600 * 1000));
  app.add_option("--key-grace-ms", flags.times.grace_ms, "a key still answers this long after its expiry")
      ->check(CLI::Range(0, 300'000));
  app.add_option("--heartbeat-ms", flags.times.heartbeat_ms, "between heartbeats with key_protectiond")
      ->check(CLI::Range(10, 3600 * 1000));
  app.add_option("--reap-ms", flags.times.reap_ms, "between sweeps of dead keys")->check(CLI::Range(10, 3600 * 1000));
  app.add_option("--ticket-ttl-ms", flags.ticket_ttl_ms, "life of a ticket")->check(CLI::Range(10, 60'000));
  app.add_option("--max-requests-per-key", flags.max_requests_per_key, "then the key is revoked and replaced")
      ->check(CLI::Range(1, 10'000'000));
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app{
      "Holds the binding keys of a node, lets each request be decapsulated once, makes and publishes the request "
      "keys."};
  add_options(app, flags);
  CLI11_PARSE(app, argc, argv);
  auto outcome = serve(flags);
  if (outcome) return 0;
  TIE_LOG("workload_servicesd", "ended: {}",
          outcome.error().code);  // the sentence below may name paths: a launcher's log drops it
  std::fprintf(stderr, "workload_servicesd: %s\n", outcome.error().message.c_str());
  return 1;
}
