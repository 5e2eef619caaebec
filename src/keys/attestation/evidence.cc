#include "keys/attestation/evidence.h"

#include "crypto/ed25519.h"
#include "crypto/wire_labels.h"
#include "keys/attestation/tpm_quote.h"

namespace tie::attestation {
namespace {

Bytes signed_text(ByteView report) {
  Bytes text;
  text.reserve(crypto::kEvidenceSignatureLabel.size() + report.size());
  append(text, crypto::kEvidenceSignatureLabel);
  append(text, report);
  return text;
}

Result<void> check_software(const Evidence& evidence, const std::string& whose) {
  auto said = crypto::ed25519_verify(evidence.public_key, signed_text(evidence.report_data), evidence.signature);
  if (!said) return fail(Code::kCorrupt, whose + " evidence carries a signature that does not match");
  if (!evidence.quote.empty()) return fail(Code::kCorrupt, whose + " evidence of kind software carries a quote");
  return {};
}

Result<void> check_tpm(const Evidence& evidence, const std::string& whose) {
  if (!evidence.public_key.empty() || !evidence.signature.empty())
    return fail(Code::kCorrupt, whose + " evidence of kind tpm carries a software signature");
  auto quote = decode_tpm_quote(evidence.quote);
  if (!quote) return fail(Code::kCorrupt, whose + " evidence: " + quote.error().message);
  return check_quote(*quote, evidence.report_data, whose);
}

}  // namespace

crypto::Digest512 report_data(ByteView claims, ByteView challenge) {
  const crypto::Digest512 inner = crypto::sha512({claims});
  const crypto::Digest512 middle = crypto::sha512({challenge, inner});
  return crypto::sha512({as_bytes(crypto::kReportDataLabel), middle});
}

crypto::Digest epoch_challenge(uint64_t publication_epoch) {
  Bytes epoch;
  append_u64_be(epoch, publication_epoch);
  return crypto::sha256({as_bytes(crypto::kEpochChallengeLabel), epoch});
}

SoftwareSigner::SoftwareSigner() {
  crypto::Ed25519KeyPair pair = crypto::ed25519_generate();
  seed_ = std::move(pair.seed);
  public_key_ = std::move(pair.public_key);
}

Result<Evidence> begin_evidence(std::string_view kind, ByteView claims, ByteView challenge) {
  if (challenge.size() < kMinChallengeBytes || challenge.size() > kMaxChallengeBytes)
    return fail(Code::kBadRequest, "a challenge has 16 to 64 bytes");
  const crypto::Digest512 report = report_data(claims, challenge);
  Evidence out;
  out.kind = kind;
  out.claims.assign(claims.begin(), claims.end());
  out.challenge.assign(challenge.begin(), challenge.end());
  out.report_data.assign(report.begin(), report.end());
  return out;
}

Result<Evidence> SoftwareSigner::state(ByteView claims, ByteView challenge) const {
  TIE_TRY(Evidence out, begin_evidence(kKindSoftware, claims, challenge));
  out.public_key = public_key_;
  TIE_TRY(out.signature, crypto::ed25519_sign(seed_.view(), signed_text(out.report_data)));
  return out;
}

Result<void> check_evidence(const Evidence& evidence, const char* whose) {
  const std::string who = whose;
  if (evidence.challenge.size() < kMinChallengeBytes || evidence.challenge.size() > kMaxChallengeBytes)
    return fail(Code::kCorrupt, who + " evidence has a challenge of the wrong length");
  const crypto::Digest512 expected = report_data(evidence.claims, evidence.challenge);
  if (!equal_constant_time(evidence.report_data, expected))
    return fail(Code::kCorrupt, who + " evidence has report data over other claims");
  if (evidence.kind == kKindSoftware) return check_software(evidence, who);
  if (evidence.kind == kKindTpm) return check_tpm(evidence, who);
  return fail(Code::kUnsupportedFeature, who + " evidence is of a kind that this client cannot check");
}

}  // namespace tie::attestation
