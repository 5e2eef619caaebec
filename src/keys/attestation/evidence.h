// Evidence: a statement of claims bound to a challenge. Kind "software" is signed by an Ed25519 key that the stating
// process drew at boot: it proves which process answered, not what machine it runs on, so every surface calls it
// "unattested". Kind "tpm" carries a quote (tpm_quote.h). Pure functions; any thread; the signer's key dies with the
// object. Source: ARCHITECTURE.md, "Keys of the node".
#pragma once
#include <string>

#include "base/secret_bytes.h"
#include "crypto/sha256.h"

namespace tie::attestation {

constexpr std::string_view kKindSoftware = "software";
constexpr size_t kMinChallengeBytes = 16;
constexpr size_t kMaxChallengeBytes = 64;

struct Evidence {
  std::string kind;
  Bytes claims, challenge, report_data;
  Bytes public_key, signature;  // software
  Bytes quote;                  // other kinds
};

// SHA-512(label || SHA-512(challenge || SHA-512(claims))).
crypto::Digest512 report_data(ByteView claims, ByteView challenge);

// The challenge of a published bundle: SHA-256(label || epoch, u64 big-endian).
crypto::Digest epoch_challenge(uint64_t publication_epoch);

// What states claims; of whatever kind. Threads: any.
class EvidenceSigner {
 public:
  virtual ~EvidenceSigner() = default;
  // kBadRequest unless the challenge has kMinChallengeBytes to kMaxChallengeBytes.
  virtual Result<Evidence> state(ByteView claims, ByteView challenge) const = 0;
};

// Claims, challenge and report data of an evidence that a signer then completes. kBadRequest as above.
Result<Evidence> begin_evidence(std::string_view kind, ByteView claims, ByteView challenge);

class SoftwareSigner final : public EvidenceSigner {
 public:
  SoftwareSigner();  // draws the boot-time key
  Result<Evidence> state(ByteView claims, ByteView challenge) const override;
  const Bytes& public_key() const { return public_key_; }

 private:
  SecretBytes seed_;
  Bytes public_key_;
};

// That the evidence holds together: report data over claims and challenge, and the kind's own proof. Not yet whether
// anyone should accept it. kUnsupportedFeature for a kind this build cannot check, kCorrupt otherwise; `whose` begins
// the sentence.
Result<void> check_evidence(const Evidence& evidence, const char* whose);

// To and from proto/attestation.proto, without needing its header here.
template <typename Proto>
void to_proto(const Evidence& evidence, Proto& out) {
  out.set_kind(evidence.kind);
  out.set_claims(evidence.claims.data(), evidence.claims.size());
  out.set_challenge(evidence.challenge.data(), evidence.challenge.size());
  out.set_report_data(evidence.report_data.data(), evidence.report_data.size());
  out.set_public_key(evidence.public_key.data(), evidence.public_key.size());
  out.set_signature(evidence.signature.data(), evidence.signature.size());
  out.set_quote(evidence.quote.data(), evidence.quote.size());
}
template <typename Proto>
Evidence evidence_from_proto(const Proto& in) {
  return {in.kind(),
          to_bytes(in.claims()),
          to_bytes(in.challenge()),
          to_bytes(in.report_data()),
          to_bytes(in.public_key()),
          to_bytes(in.signature()),
          to_bytes(in.quote())};
}

}  // namespace tie::attestation
