// Evidence of kind "tpm": a quote by a TPM's attestation key over the report data and over PCRs, the values of those
// PCRs, and the log of what was measured into kMeasuredPcr. The log is believed only as far as replaying it gives that
// PCR's value. Pure functions; any thread; decoding takes untrusted bytes and accepts exactly what encoding produces.
// Source: TPM 2.0 Library, parts 2 and 3 (TPM2_Quote); byte format: docs/wire-format.md, "TPM quotes".
#pragma once
#include <utility>
#include <vector>

#include "crypto/p256.h"
#include "keys/attestation/claims.h"
#include "keys/attestation/policy.h"

namespace tie::attestation {

constexpr std::string_view kKindTpm = "tpm";
constexpr uint8_t kMeasuredPcr = 14;
constexpr size_t kPcrCount = 24;
constexpr size_t kMaxMeasurements = 1024;
constexpr size_t kMaxQuoteBytes = 128 << 10;

enum class Measured : uint8_t { kRelease = 1, kModel = 2, kPrompt = 3 };

struct Measurement {
  Measured what = Measured::kRelease;
  Digest digest{};
  bool operator==(const Measurement&) const = default;
};

struct TpmQuote {
  Bytes attest;                                  // TPMS_ATTEST
  Bytes signature;                               // r || s, ECDSA P-256 with SHA-256
  Bytes key;                                     // x || y of the attestation key
  std::vector<std::pair<uint8_t, Digest>> pcrs;  // SHA-256 bank, by index
  std::vector<Measurement> log;
};
Bytes encode(const TpmQuote& quote);
Result<TpmQuote> decode_tpm_quote(ByteView bytes);

// What the TPM is given to sign along: SHA-256(label || report data), since not every TPM takes 64 bytes.
Digest quote_nonce(ByteView report_data);
// What is extended into the PCR for one measurement, and the PCR after all of them.
Digest extension_of(const Measurement& measurement);
Digest replay(const std::vector<Measurement>& log);
Digest attestation_key_id(ByteView key);  // SHA-256(x || y): what policies pin

// The quote is the key's, over this report data and these PCR values. kCorrupt.
Result<void> check_quote(const TpmQuote& quote, ByteView report_data, const std::string& whose);
// The policy pins the attestation key, and every PCR value that it names. kPermissionDenied.
Result<void> check_quote_policy(const TpmQuote& quote, const Policy& policy, const std::string& whose);
// The log gives the PCR, and the claims are what was measured: one release, and every claimed model and prompt.
// kPermissionDenied, each fault with its own sentence.
Result<void> check_measured(const TpmQuote& quote, const WorkloadClaims& claims);

}  // namespace tie::attestation
