// A client's decision about a node: a bundle against a policy, before anything is sealed to it. Both evidences are
// required, and they must name the same binding key. Each refusal has its own sentence. There is no fall-back to less.
// Pure functions; any thread. The bundle is untrusted input. Source: ARCHITECTURE.md, "Keys of the node";
// docs/wire-format.md.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "crypto/request_key.h"
#include "keys/attestation/policy.h"

namespace tie::v1 {
class AttestationBundle;
}

namespace tie::attestation {

struct ServedModel {
  std::string name;
  crypto::Digest model_id{};
  uint32_t context_tokens = 0;
  std::string architecture;
};

struct VerifiedNode {
  crypto::RequestKey key;  // what to seal to
  uint64_t expires_unix_ms = 0;
  crypto::Digest release_id{};
  std::vector<ServedModel> models;
  std::vector<crypto::Digest> prompt_digests;
  std::string workload_kind, key_service_kind;
  bool attested = false;  // false whenever one of the kinds is "software"
  bool token_required = false;
  Bytes token_challenge;  // as the node says; nothing secret depends on it
  // For people: "unattested (software evidence)" or "attested (tpm)".
  std::string describe() const;
};

struct VerifyOptions {
  // The challenge the client sent; without one the bundle's must be the hash of its publication epoch.
  std::optional<Bytes> challenge;
  uint64_t now_unix_ms = 0;
};

// One thing that was looked at, as a person reads it.
struct Check {
  bool passed = false;
  std::string sentence;
};

// `checks`, when given, receives every check that could be made, in order, also those after a failed one; the error
// returned is the first failure. Errors: kPermissionDenied (policy refuses), kKeyUnknownOrExpired (fetch another
// bundle), kCorrupt (does not hold together), kUnsupportedFeature (a suite or kind this client does not know).
Result<VerifiedNode> verify_bundle(const v1::AttestationBundle& bundle, const Policy& policy,
                                   const VerifyOptions& options, std::vector<Check>* checks = nullptr);

}  // namespace tie::attestation
