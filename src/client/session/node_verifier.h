// What a client believes about a node and why: a bundle becomes a VerifiedNode only through a verifier, and nothing is
// sealed before. Threads: verify() may be called from any thread. Source: ARCHITECTURE.md, "Keys of the node";
// src/keys/attestation.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "crypto/request_seal.h"

namespace tie::v1 {
class AttestationBundle;
}

namespace tie::client {

struct ServedModel {
  std::string name;
  std::string model_id_hex;
  uint32_t context_tokens = 0;
  std::string architecture;
};

// One thing that was looked at, in the words in which a person may read it.
struct VerdictLine {
  bool passed = false;
  std::string text;
};

struct VerifiedNode {
  crypto::RequestKey key;
  uint64_t expires_unix_ms = 0;
  bool token_required = false;
  Bytes token_challenge;  // then: what tokens for this node are made for
  std::string assurance;  // "unattested" for software evidence, else the kind: "tpm"
  std::string release_id_hex;
  std::string key_id_hex;
  std::vector<std::string> evidence_kinds;  // workload, key service
  std::vector<ServedModel> models;

  // "unattested; release=<12 hex>; key=<12 hex>": the header and the line of the terminal.
  std::string summary() const;
  std::string release_short() const { return release_id_hex.substr(0, 12); }
  const ServedModel* find_model(const std::string& name) const;
};

// A bundle looked at from all sides: what it says, and what the policy says to that.
struct Inspection {
  VerifiedNode claimed;  // the node's own words; believed only when `refusal` is empty
  std::vector<VerdictLine> verdict;
  std::optional<Error> refusal;
};

class NodeVerifier {
 public:
  virtual ~NodeVerifier() = default;
  // `challenge` is the one this client has just drawn. Errors: kPermissionDenied when the policy refuses, kCorrupt for
  // a bundle that does not hold together, kKeyUnknownOrExpired for a key that is over.
  virtual Result<VerifiedNode> verify(const v1::AttestationBundle& bundle, ByteView challenge) const = 0;
  // The same judgement with its reasons, also when it is a refusal: for `tie keys`.
  virtual Inspection inspect(const v1::AttestationBundle& bundle, ByteView challenge) const = 0;
};

// Refuses everything, but tells what the node says of itself: for `tie policy pin --from-node`, when there is no policy
// yet.
std::unique_ptr<NodeVerifier> no_policy_verifier();

// Judges by a policy file. Errors of loading: kNotFound with the places that were tried and the next step, kBadRequest
// for a bad file.
Result<std::unique_ptr<NodeVerifier>> policy_verifier(const std::string& policy_path);

// The policy file in force: `given`, else ~/.config/tie/policy.toml, else PREFIX/share/tie/policy.toml beside this
// program.
Result<std::string> find_policy(const std::string& given);
std::vector<std::string> policy_places();

// The public facts of a bundle, unjudged. kCorrupt when sizes or the suite are impossible.
Result<VerifiedNode> facts_of(const v1::AttestationBundle& bundle);

}  // namespace tie::client
