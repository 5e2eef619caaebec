#include "keys/tpm/tpm_signer.h"

namespace tie::tpm {
namespace {

const std::vector<uint8_t> kQuotedPcrs = {0, 1, 2, 3, 4, 5, 6, 7, attestation::kMeasuredPcr};
constexpr int kQuoteAttempts = 3;

}  // namespace

Result<std::unique_ptr<TpmSigner>> TpmSigner::open(const std::string& tpm, const std::string& log_path) {
  std::unique_ptr<TpmSigner> out(new TpmSigner(tpm));
  TIE_TRY(TpmLink link, TpmLink::open(tpm));
  TIE_TRY(const AttestationKey key, create_attestation_key(link));
  out->key_id_ = attestation::attestation_key_id(key.point);
  TIE_CHECK_OK(flush(link, key.handle));
  if (!log_path.empty()) {
    TIE_TRY(out->log_, MeasuredLog::open(log_path, link));
  }
  return out;
}

Result<void> TpmSigner::measure(const std::vector<attestation::Measurement>& measurements) {
  std::lock_guard lock(mutex_);
  if (!log_) return fail(Code::kFailedPrecondition, "this process does not measure");
  TIE_TRY(TpmLink link, TpmLink::open(path_));
  for (const attestation::Measurement& measurement : measurements) TIE_CHECK_OK(log_->measure(measurement, link));
  return {};
}

Result<attestation::TpmQuote> TpmSigner::quote_once(TpmLink& link, const AttestationKey& key,
                                                    const crypto::Digest& nonce) const {
  TIE_TRY(SignedQuote signed_quote, quote(link, key.handle, nonce, kQuotedPcrs));
  TIE_TRY(Pcrs values, read_pcrs(link, kQuotedPcrs));
  attestation::TpmQuote out{
      std::move(signed_quote.attest), std::move(signed_quote.signature), key.point, std::move(values), {}};
  if (log_) out.log = log_->entries();
  return out;
}

Result<attestation::Evidence> TpmSigner::state(ByteView claims, ByteView challenge) const {
  TIE_TRY(attestation::Evidence out, attestation::begin_evidence(attestation::kKindTpm, claims, challenge));
  std::lock_guard lock(mutex_);
  TIE_TRY(TpmLink link, TpmLink::open(path_));
  TIE_TRY(const AttestationKey key, create_attestation_key(link));
  Result<void> sound = {};
  // Another process may extend a PCR between the quote and the reading.
  for (int attempt = 0; attempt < kQuoteAttempts; ++attempt) {
    auto made = quote_once(link, key, attestation::quote_nonce(out.report_data));
    if (!made) {
      (void)flush(link, key.handle);
      return std::unexpected(std::move(made.error()));
    }
    out.quote = attestation::encode(*made);
    sound = attestation::check_quote(*made, out.report_data, "this node's");
    if (sound) break;
  }
  TIE_CHECK_OK(flush(link, key.handle));
  if (!sound) return std::unexpected(std::move(sound.error()));
  return out;
}

}  // namespace tie::tpm
