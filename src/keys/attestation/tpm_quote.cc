#include "keys/attestation/tpm_quote.h"

#include <algorithm>

#include "base/byte_reader.h"

namespace tie::attestation {
namespace {

constexpr std::string_view kQuoteLabel = "tie/1 tpm quote";
constexpr std::string_view kNonceLabel = "tie/1 tpm nonce";
constexpr std::string_view kMeasurementLabel = "tie/1 measurement";
constexpr uint32_t kTpmGenerated = 0xff544347;
constexpr uint16_t kAttestQuote = 0x8018;
constexpr uint16_t kAlgSha256 = 0x000b;
constexpr size_t kMaxAttestBytes = 1024;

struct Attest {
  Bytes extra_data, pcr_digest;
  std::vector<uint8_t> selected;
};

// TPMS_ATTEST of a quote over one selection of the SHA-256 bank.
Result<Attest> decode_attest(ByteView bytes) {
  const auto malformed = [] { return fail(Code::kCorrupt, "the TPM's statement is not a quote"); };
  ByteReader in(bytes);
  if (in.number(4) != kTpmGenerated || in.number(2) != kAttestQuote) return malformed();
  in.sized(2);  // the key's qualified name
  Attest out;
  const ByteView extra = in.sized(2);
  out.extra_data.assign(extra.begin(), extra.end());
  in.take(17 + 8);  // clock, firmware version
  const bool one_bank = in.number(4) == 1 && in.number(2) == kAlgSha256;
  const ByteView bitmap = in.sized(1);
  const ByteView digest = in.sized(2);
  if (!in.done() || !one_bank || bitmap.size() > kPcrCount / 8) return malformed();
  for (size_t i = 0; i < bitmap.size() * 8; ++i)
    if ((bitmap[i / 8] >> (i % 8) & 1) != 0) out.selected.push_back(static_cast<uint8_t>(i));
  out.pcr_digest.assign(digest.begin(), digest.end());
  return out;
}

void append_part(Bytes& out, ByteView part) {
  append_u32_be(out, static_cast<uint32_t>(part.size()));
  append(out, part);
}

const Digest* pcr_value(const TpmQuote& quote, uint8_t index) {
  for (const auto& [number, value] : quote.pcrs)
    if (number == index) return &value;
  return nullptr;
}

std::unexpected<Error> refuse(std::string sentence) {
  return fail(Code::kPermissionDenied, std::move(sentence));
}

std::string short_id(const Digest& digest) {
  return to_hex(digest).substr(0, 12);
}

}  // namespace

Bytes encode(const TpmQuote& quote) {
  Bytes out, pcrs, log;
  for (const auto& [index, value] : quote.pcrs) {
    pcrs.push_back(index);
    append(pcrs, ByteView(value));
  }
  for (const Measurement& measurement : quote.log) {
    log.push_back(static_cast<uint8_t>(measurement.what));
    append(log, ByteView(measurement.digest));
  }
  for (const ByteView part : {as_bytes(kQuoteLabel), ByteView(quote.attest), ByteView(quote.signature),
                              ByteView(quote.key), ByteView(pcrs), ByteView(log)})
    append_part(out, part);
  return out;
}

Result<TpmQuote> decode_tpm_quote(ByteView bytes) {
  constexpr size_t kRow = 1 + crypto::kSha256Bytes;
  ByteReader in(bytes);
  const bool labelled = as_text(in.sized(4)) == kQuoteLabel;
  const ByteView attest = in.sized(4), signature = in.sized(4), key = in.sized(4), pcrs = in.sized(4),
                 log = in.sized(4);
  const bool formed = bytes.size() <= kMaxQuoteBytes && in.done() && labelled && attest.size() <= kMaxAttestBytes &&
                      signature.size() == crypto::kP256SignatureBytes && key.size() == crypto::kP256PointBytes &&
                      pcrs.size() % kRow == 0 && pcrs.size() / kRow <= kPcrCount && log.size() % kRow == 0 &&
                      log.size() / kRow <= kMaxMeasurements;
  if (!formed) return fail(Code::kCorrupt, "the TPM quote is not in its canonical form");
  TpmQuote out{Bytes(attest.begin(), attest.end()),
               Bytes(signature.begin(), signature.end()),
               Bytes(key.begin(), key.end()),
               {},
               {}};
  for (size_t at = 0; at < pcrs.size(); at += kRow) {
    out.pcrs.emplace_back(pcrs[at], *crypto::digest_from(pcrs.subspan(at + 1, crypto::kSha256Bytes), "a PCR"));
    if (at != 0 && out.pcrs.end()[-2].first >= pcrs[at])
      return fail(Code::kCorrupt, "the TPM quote's PCRs are not sorted");
  }
  for (size_t at = 0; at < log.size(); at += kRow) {
    if (log[at] < 1 || log[at] > 3) return fail(Code::kCorrupt, "the measurement log holds an unknown kind");
    out.log.push_back({static_cast<Measured>(log[at]),
                       *crypto::digest_from(log.subspan(at + 1, crypto::kSha256Bytes), "a measurement")});
  }
  return out;
}

Digest quote_nonce(ByteView report_data) {
  return crypto::sha256({as_bytes(kNonceLabel), report_data});
}

Digest extension_of(const Measurement& measurement) {
  const uint8_t kind = static_cast<uint8_t>(measurement.what);
  return crypto::sha256({as_bytes(kMeasurementLabel), ByteView(&kind, 1), measurement.digest});
}

Digest replay(const std::vector<Measurement>& log) {
  Digest pcr{};
  for (const Measurement& measurement : log) pcr = crypto::sha256({ByteView(pcr), extension_of(measurement)});
  return pcr;
}

Digest attestation_key_id(ByteView key) {
  return crypto::sha256(key);
}

Result<void> check_quote(const TpmQuote& quote, ByteView report_data, const std::string& whose) {
  auto attest = decode_attest(quote.attest);
  if (!attest) return fail(Code::kCorrupt, whose + " evidence: " + attest.error().message);
  if (!crypto::p256_verify(quote.key, quote.attest, quote.signature))
    return fail(Code::kCorrupt, whose + " evidence carries a TPM signature that does not match");
  if (!equal_constant_time(attest->extra_data, quote_nonce(report_data)))
    return fail(Code::kCorrupt, whose + " evidence carries a TPM quote over other report data");
  Bytes values;
  std::vector<uint8_t> listed;
  for (const auto& [index, value] : quote.pcrs) {
    listed.push_back(index);
    append(values, ByteView(value));
  }
  if (listed != attest->selected || !equal_constant_time(attest->pcr_digest, crypto::sha256(values)))
    return fail(Code::kCorrupt, whose + " evidence lists PCR values that the TPM did not quote");
  return {};
}

Result<void> check_quote_policy(const TpmQuote& quote, const Policy& policy, const std::string& whose) {
  const Digest id = attestation_key_id(quote.key);
  if (std::find(policy.tpm_keys.begin(), policy.tpm_keys.end(), id) == policy.tpm_keys.end())
    return refuse(whose + " evidence is signed by the TPM key " + to_hex(id) + ", which the policy does not pin");
  for (const auto& [index, expected] : policy.tpm_pcrs) {
    const Digest* value = pcr_value(quote, index);
    if (value == nullptr || *value != expected)
      return refuse(whose + " evidence has another value in PCR " + std::to_string(index) + " than the policy pins");
  }
  return {};
}

Result<void> check_measured(const TpmQuote& quote, const WorkloadClaims& claims) {
  const Digest* pcr = pcr_value(quote, kMeasuredPcr);
  if (pcr == nullptr) return refuse("the TPM quote does not cover PCR 14, into which the node is measured");
  if (*pcr != replay(quote.log)) return refuse("the TPM holds a measurement that the log does not list");
  const auto measured = [&](Measured what, const Digest& digest) {
    return std::find(quote.log.begin(), quote.log.end(), Measurement{what, digest}) != quote.log.end();
  };
  for (const Measurement& measurement : quote.log)
    if (measurement.what == Measured::kRelease && measurement.digest != claims.release_id)
      return refuse("the TPM measured release " + short_id(measurement.digest) + ", but the node claims release " +
                    short_id(claims.release_id));
  if (!measured(Measured::kRelease, claims.release_id)) return refuse("the TPM measured no release of this node");
  for (const Digest& model : claims.model_ids)
    if (!measured(Measured::kModel, model))
      return refuse("the node claims model " + short_id(model) + ", which the TPM did not measure");
  for (const Digest& prompt : claims.prompt_digests)
    if (!measured(Measured::kPrompt, prompt))
      return refuse("the node claims system prompt " + short_id(prompt) + ", which the TPM did not measure");
  return {};
}

}  // namespace tie::attestation
