#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>

#include "attestation.pb.h"
#include "base/clock.h"
#include "client/session/node_verifier.h"
#include "keys/attestation/verify.h"

namespace tie::client {
namespace {

bool is_file(const std::string& path) {
  struct stat facts;
  return ::stat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode);
}

// PREFIX of PREFIX/bin/tie.
std::string install_prefix() {
  char path[PATH_MAX];
  ssize_t size = ::readlink("/proc/self/exe", path, sizeof path);
  if (size <= 0) return {};
  std::string program(path, size_t(size));
  for (int i = 0; i < 2; ++i) program = program.substr(0, program.rfind('/'));
  return program;
}

class PolicyVerifier final : public NodeVerifier {
 public:
  explicit PolicyVerifier(attestation::Policy policy) : policy_(std::move(policy)) {}

  Result<VerifiedNode> verify(const v1::AttestationBundle& bundle, ByteView challenge) const override {
    TIE_TRY(auto judged, attestation::verify_bundle(bundle, policy_, options(challenge)));
    VerifiedNode node;
    node.key = std::move(judged.key);
    node.expires_unix_ms = judged.expires_unix_ms;
    node.token_required = judged.token_required;
    node.token_challenge = judged.token_challenge;
    node.assurance = judged.attested ? judged.workload_kind : "unattested";
    node.release_id_hex = to_hex(judged.release_id);
    node.key_id_hex = to_hex(node.key.key_id);
    node.evidence_kinds = {judged.workload_kind, judged.key_service_kind};
    for (const auto& model : judged.models) {
      node.models.push_back({model.name, to_hex(model.model_id), model.context_tokens, model.architecture});
    }
    return node;
  }

  Inspection inspect(const v1::AttestationBundle& bundle, ByteView challenge) const override {
    Inspection out;
    if (auto facts = facts_of(bundle)) out.claimed = std::move(*facts);
    std::vector<attestation::Check> checks;
    auto judged = attestation::verify_bundle(bundle, policy_, options(challenge), &checks);
    for (const auto& check : checks) out.verdict.push_back({check.passed, check.sentence});
    if (!judged) out.refusal = judged.error();
    return out;
  }

 private:
  static attestation::VerifyOptions options(ByteView challenge) {
    return {.challenge = Bytes(challenge.begin(), challenge.end()), .now_unix_ms = uint64_t(wall_clock_ms())};
  }
  attestation::Policy policy_;
};

}  // namespace

std::unique_ptr<NodeVerifier> no_policy_verifier() {
  return std::make_unique<PolicyVerifier>(attestation::Policy{});
}

std::vector<std::string> policy_places() {
  std::vector<std::string> places;
  const char* config = std::getenv("XDG_CONFIG_HOME");
  const char* home = std::getenv("HOME");
  if (config && *config) {
    places.push_back(std::string(config) + "/tie/policy.toml");
  } else if (home && *home) {
    places.push_back(std::string(home) + "/.config/tie/policy.toml");
  }
  places.push_back(install_prefix() + "/share/tie/policy.toml");
  return places;
}

Result<std::string> find_policy(const std::string& given) {
  if (!given.empty()) {
    if (is_file(given)) return given;
    return fail(Code::kNotFound, "no policy file at " + given);
  }
  std::string tried;
  for (const std::string& place : policy_places()) {
    if (is_file(place)) return place;
    tried += (tried.empty() ? "" : " and ") + place;
  }
  return fail(Code::kNotFound, "no policy file: looked at " + tried +
                                   ". It says which releases you trust; `./dev up` writes one for your own build, or "
                                   "name one with --policy FILE");
}

Result<std::unique_ptr<NodeVerifier>> policy_verifier(const std::string& policy_path) {
  TIE_TRY(attestation::Policy policy, attestation::load_policy(policy_path));
  return std::make_unique<PolicyVerifier>(std::move(policy));
}

}  // namespace tie::client
