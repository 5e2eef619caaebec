#include "keys/attestation/tpm_quote.h"

#include <gtest/gtest.h>

namespace tie::attestation {
namespace {

Digest digest(uint8_t fill) {
  Digest out;
  out.fill(fill);
  return out;
}

TpmQuote quote_with(std::vector<Measurement> log) {
  TpmQuote out{Bytes(100, 1), Bytes(64, 2), Bytes(64, 3), {}, std::move(log)};
  out.pcrs = {{0, digest(9)}, {kMeasuredPcr, replay(out.log)}};
  return out;
}

const std::vector<Measurement> kLog = {
    {Measured::kRelease, digest(1)}, {Measured::kModel, digest(2)}, {Measured::kPrompt, digest(3)}};
const WorkloadClaims kClaims{{}, digest(1), {digest(2)}, {digest(3)}};

std::string refusal(const Result<void>& outcome) {
  return outcome ? "" : outcome.error().message;
}

TEST(TpmQuote, HasOneEncoding) {
  const TpmQuote quote = quote_with(kLog);
  const Bytes bytes = encode(quote);
  auto decoded = decode_tpm_quote(bytes);
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->log, kLog);
  EXPECT_EQ(decoded->pcrs, quote.pcrs);
  EXPECT_EQ(encode(*decoded), bytes);
  for (size_t size = 0; size < bytes.size(); size += 7) EXPECT_FALSE(decode_tpm_quote(ByteView(bytes).first(size)));
  Bytes longer = bytes;
  longer.push_back(0);
  EXPECT_FALSE(decode_tpm_quote(longer));
  TpmQuote unsorted = quote;
  std::swap(unsorted.pcrs[0], unsorted.pcrs[1]);
  EXPECT_FALSE(decode_tpm_quote(encode(unsorted)));
}

TEST(TpmQuote, AcceptsClaimsThatWereMeasured) {
  EXPECT_EQ(refusal(check_measured(quote_with(kLog), kClaims)), "");
  // Assets that were replaced stay in the log; a later start finds itself measured already.
  auto log = kLog;
  log.push_back({Measured::kPrompt, digest(7)});
  EXPECT_EQ(refusal(check_measured(quote_with(log), kClaims)), "");
}

TEST(TpmQuote, EachFaultHasItsOwnSentence) {
  WorkloadClaims other = kClaims;
  other.release_id = digest(8);
  EXPECT_EQ(refusal(check_measured(quote_with(kLog), other)),
            "the TPM measured release 010101010101, but the node claims release 080808080808");
  other = kClaims;
  other.prompt_digests = {digest(8)};
  EXPECT_EQ(refusal(check_measured(quote_with(kLog), other)),
            "the node claims system prompt 080808080808, which the TPM did not measure");
  other = kClaims;
  other.model_ids.push_back(digest(8));
  EXPECT_EQ(refusal(check_measured(quote_with(kLog), other)),
            "the node claims model 080808080808, which the TPM did not measure");
  TpmQuote unlogged = quote_with(kLog);
  unlogged.log.pop_back();
  EXPECT_EQ(refusal(check_measured(unlogged, kClaims)), "the TPM holds a measurement that the log does not list");
  auto two = kLog;
  two.push_back({Measured::kRelease, digest(8)});
  EXPECT_EQ(refusal(check_measured(quote_with(two), kClaims)),
            "the TPM measured release 080808080808, but the node claims release 010101010101");
  EXPECT_EQ(refusal(check_measured(quote_with({kLog.begin() + 1, kLog.end()}), kClaims)),
            "the TPM measured no release of this node");
  TpmQuote without = quote_with(kLog);
  without.pcrs.pop_back();
  EXPECT_EQ(refusal(check_measured(without, kClaims)),
            "the TPM quote does not cover PCR 14, into which the node is measured");
}

TEST(TpmQuote, APolicyPinsTheKeyAndPcrs) {
  const TpmQuote quote = quote_with(kLog);
  Policy policy;
  EXPECT_NE(refusal(check_quote_policy(quote, policy, "the")).find("which the policy does not pin"), std::string::npos);
  policy.tpm_keys = {attestation_key_id(quote.key)};
  EXPECT_EQ(refusal(check_quote_policy(quote, policy, "the")), "");
  policy.tpm_pcrs = {{0, digest(9)}};
  EXPECT_EQ(refusal(check_quote_policy(quote, policy, "the")), "");
  policy.tpm_pcrs = {{0, digest(8)}};
  EXPECT_EQ(refusal(check_quote_policy(quote, policy, "the")),
            "the evidence has another value in PCR 0 than the policy pins");
  policy.tpm_pcrs = {{1, digest(9)}};
  EXPECT_FALSE(check_quote_policy(quote, policy, "the")) << "not quoted";
}

TEST(TpmQuote, AStatementThatIsNoQuoteIsRefused) {
  EXPECT_NE(refusal(check_quote(quote_with(kLog), Bytes(64, 1), "the")).find("not a quote"), std::string::npos);
}

TEST(TpmPolicy, IsReadStrictly) {
  const std::string hex(64, 'a'), begin = "release_ids=[\"" + hex + "\"]\naccepted_kinds=[\"tpm\"]\n";
  auto policy = parse_policy(begin + "tpm_keys=[\"" + hex + "\"]\ntpm_pcrs=[\"7:" + hex + "\"]\n");
  ASSERT_TRUE(policy) << policy.error().message;
  EXPECT_EQ(policy->tpm_pcrs.front().first, 7);
  auto again = parse_policy(render_policy(*policy));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->tpm_keys, policy->tpm_keys);
  EXPECT_EQ(again->tpm_pcrs, policy->tpm_pcrs);
  for (const std::string& bad : {"24:" + hex, ":" + hex, "7" + hex, "7:" + hex.substr(1), "x:" + hex, "-1:" + hex})
    EXPECT_FALSE(parse_policy(begin + "tpm_pcrs=[\"" + bad + "\"]")) << bad;
}

// RFC 6979, appendix A.2.5: P-256, SHA-256, message "sample".
TEST(P256, MatchesRfc6979AndRefusesEveryChange) {
  const Bytes point = *from_hex(
      "60fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6"
      "7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299");
  const Bytes signature = *from_hex(
      "efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716"
      "f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8");
  EXPECT_TRUE(crypto::p256_verify(point, as_bytes("sample"), signature));
  EXPECT_EQ(crypto::p256_verify(point, as_bytes("Sample"), signature).error().code, Code::kCorrupt);
  for (size_t at : {0, 31, 32, 63}) {
    Bytes changed = signature, other = point;
    changed[at] ^= 1;
    other[at] ^= 1;
    EXPECT_FALSE(crypto::p256_verify(point, as_bytes("sample"), changed)) << at;
    EXPECT_FALSE(crypto::p256_verify(other, as_bytes("sample"), signature)) << at;
  }
  EXPECT_FALSE(crypto::p256_verify(point, as_bytes("sample"), Bytes(64, 0)));
  EXPECT_EQ(crypto::p256_verify(Bytes(63, 1), as_bytes("sample"), signature).error().code, Code::kBadRequest);
}

}  // namespace
}  // namespace tie::attestation
