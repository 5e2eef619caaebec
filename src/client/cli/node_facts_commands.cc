// `tie keys` and `tie models`: what a node says of itself and whether this client believes it.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <ctime>

#include "base/clock.h"
#include "client/cli/command.h"
#include "crypto/kem.h"

namespace tie::cli {
namespace {

const char* suite_name(crypto::KemId kem) {
  return kem == crypto::KemId::kXWing ? "X-Wing (ML-KEM-768 + X25519), HKDF-SHA256, AES-256-GCM"
                                      : "DHKEM(X25519), HKDF-SHA256, AES-256-GCM";
}

std::string expiry(uint64_t unix_ms) {
  std::time_t seconds = std::time_t(unix_ms / 1000);
  std::tm when{};
  ::gmtime_r(&seconds, &when);
  int64_t left_min = (int64_t(unix_ms) - wall_clock_ms()) / 60'000;
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC ({} h {} min left)", when, left_min / 60, left_min % 60);
}

int keys(const NodeFlags& flags) {
  auto session = open_session(flags);
  if (!session) return report(session.error());
  auto seen = (*session)->inspect();
  if (!seen) return report(seen.error());
  const client::VerifiedNode& node = seen->claimed;
  fmt::print(
      "node      {}\nkey id    {}\nsuite     {}\nexpires   {}\nrelease   {}\nevidence  workload: {}, key service: {}\n",
      flags.node, node.key_id_hex, suite_name(node.key.suite.kem), expiry(node.expires_unix_ms), node.release_id_hex,
      node.evidence_kinds.at(0), node.evidence_kinds.at(1));
  for (const auto& model : node.models) fmt::print("model     {} ({})\n", model.name, model.model_id_hex.substr(0, 12));
  fmt::print("\npolicy    {}\n", (*session)->options().policy_path);
  for (const auto& line : seen->verdict) fmt::print("  {}  {}\n", line.passed ? "ok  " : "FAIL", line.text);
  if (seen->refusal) {
    fmt::print("\nREFUSED: nothing is sent to this node.\n");
    return report(*seen->refusal);
  }
  fmt::print("\n{}\n",
             node.assurance == "unattested"
                 ? "Accepted, UNATTESTED: software evidence says which programs answered, not what machine they run on."
                 : "Accepted.");
  return kExitOk;
}

int models(const NodeFlags& flags) {
  auto session = open_session(flags);
  if (!session) return report(session.error());
  auto node = (*session)->node();
  if (!node) return report(node.error());
  fmt::print("{:<32} {:>8}  {:<12} {}\n", "NAME", "CONTEXT", "ARCHITECTURE", "ID");
  for (const auto& model : (*node)->models) {
    fmt::print("{:<32} {:>8}  {:<12} {}\n", model.name, model.context_tokens, model.architecture,
               model.model_id_hex.substr(0, 12));
  }
  return kExitOk;
}

}  // namespace

void add_node_facts_commands(CLI::App& app, int& exit_code) {
  auto k = std::make_shared<NodeFlags>();
  CLI::App* keys_command =
      app.add_subcommand("keys", "show the node's key and evidence, and how your policy judges them");
  add_node_flags(*keys_command, *k);
  keys_command->footer(kExitCodesHelp);
  keys_command->callback([k, &exit_code] { exit_code = keys(*k); });

  auto m = std::make_shared<NodeFlags>();
  CLI::App* models_command = app.add_subcommand("models", "list the models that the node serves");
  add_node_flags(*models_command, *m);
  models_command->callback([m, &exit_code] { exit_code = models(*m); });
}

}  // namespace tie::cli
