// Makes evidence of kind "tpm": quotes PCRs 0 to 7 (what booted the machine) and 14 (what this node measured) over the
// report data, with an attestation key that the TPM derives anew each time. Threads: any (one statement at a time). The
// TPM is opened for each statement and let go, since others use it too. Cost: some ten milliseconds with swtpm, more
// with hardware.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "keys/attestation/evidence.h"
#include "keys/tpm/measured_log.h"

namespace tie::tpm {

class TpmSigner final : public attestation::EvidenceSigner {
 public:
  // `log_path`: of the process that measures; empty for one that only states. Errors: those of the TPM.
  static Result<std::unique_ptr<TpmSigner>> open(const std::string& tpm, const std::string& log_path);

  Result<attestation::Evidence> state(ByteView claims, ByteView challenge) const override;
  // Into PCR 14, each once. kFailedPrecondition without a log.
  Result<void> measure(const std::vector<attestation::Measurement>& measurements);
  // SHA-256 of the attestation key: what a policy pins.
  const crypto::Digest& key_id() const { return key_id_; }

 private:
  explicit TpmSigner(std::string path) : path_(std::move(path)) {}
  Result<attestation::TpmQuote> quote_once(TpmLink& link, const AttestationKey& key, const crypto::Digest& nonce) const;
  const std::string path_;
  mutable std::mutex mutex_;
  std::optional<MeasuredLog> log_;  // guarded by mutex_
  crypto::Digest key_id_{};
};

}  // namespace tie::tpm
