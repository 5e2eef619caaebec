// Against Debian's swtpm.
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "keys/attestation/verify.h"
#include "keys/tpm/testing/swtpm.h"
#include "keys/tpm/tpm_signer.h"

namespace tie::tpm {
namespace {

using attestation::Measured;
using attestation::Measurement;

crypto::Digest digest(uint8_t fill) {
  crypto::Digest out;
  out.fill(fill);
  return out;
}

class Tpm : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::Swtpm::available()) GTEST_SKIP() << "swtpm is not installed: ./dev deps --tests";
    tpm_ = std::make_unique<testing::Swtpm>();
  }
  std::string log() const { return tpm_->folder() + "/measurements"; }
  std::unique_ptr<TpmSigner> signer() const {
    auto out = TpmSigner::open(tpm_->socket(), log());
    EXPECT_TRUE(out) << out.error().message;
    return std::move(*out);
  }
  attestation::TpmQuote quote_of(const TpmSigner& signer) const {
    auto evidence = signer.state(as_bytes("claims"), Bytes(32, 5));
    EXPECT_TRUE(evidence) << evidence.error().message;
    EXPECT_TRUE(attestation::check_evidence(*evidence, "the"));
    return *attestation::decode_tpm_quote(evidence->quote);
  }
  std::unique_ptr<testing::Swtpm> tpm_;
  const attestation::WorkloadClaims claims_{{}, digest(1), {digest(2)}, {}};
  const std::vector<Measurement> measured_ = {{Measured::kRelease, digest(1)}, {Measured::kModel, digest(2)}};
};

TEST_F(Tpm, QuotesWhatWasMeasuredOverTheChallenge) {
  auto stating = signer();
  ASSERT_TRUE(stating->measure(measured_));
  auto evidence = stating->state(as_bytes("claims"), Bytes(32, 5));
  ASSERT_TRUE(evidence) << evidence.error().message;
  EXPECT_EQ(evidence->kind, "tpm");
  EXPECT_TRUE(attestation::check_evidence(*evidence, "the"));
  auto quote = attestation::decode_tpm_quote(evidence->quote);
  ASSERT_TRUE(quote);
  EXPECT_TRUE(attestation::check_measured(*quote, claims_));
  EXPECT_EQ(attestation::attestation_key_id(quote->key), stating->key_id());
}

TEST_F(Tpm, EvidenceForAnotherChallengeOrChangedAnywhereIsRefused) {
  auto stating = signer();
  ASSERT_TRUE(stating->measure(measured_));
  const auto evidence = stating->state(as_bytes("claims"), Bytes(32, 5));
  ASSERT_TRUE(evidence);
  // Report data over another challenge, with the old quote.
  auto moved = attestation::begin_evidence("tpm", as_bytes("claims"), Bytes(32, 6));
  moved->quote = evidence->quote;
  EXPECT_EQ(attestation::check_evidence(*moved, "the").error().message,
            "the evidence carries a TPM quote over other report data");
  auto changed = [&](auto change) {
    auto out = *evidence;
    auto quote = *attestation::decode_tpm_quote(out.quote);
    change(quote);
    out.quote = attestation::encode(quote);
    auto said = attestation::check_evidence(out, "the");
    return said ? std::string() : said.error().message;
  };
  EXPECT_EQ(changed([](auto& q) { q.signature[5] ^= 1; }), "the evidence carries a TPM signature that does not match");
  EXPECT_EQ(changed([](auto& q) { q.key[5] ^= 1; }), "the evidence carries a TPM signature that does not match");
  EXPECT_EQ(changed([](auto& q) { q.attest.back() ^= 1; }), "the evidence carries a TPM signature that does not match");
  EXPECT_EQ(changed([](auto& q) { q.pcrs[0].second[0] ^= 1; }),
            "the evidence lists PCR values that the TPM did not quote");
  EXPECT_EQ(changed([](auto& q) { q.pcrs.pop_back(); }), "the evidence lists PCR values that the TPM did not quote");
}

TEST_F(Tpm, AMeasurementBesideTheLogShows) {
  auto stating = signer();
  ASSERT_TRUE(stating->measure(measured_));
  auto link = TpmLink::open(tpm_->socket());
  ASSERT_TRUE(link);
  ASSERT_TRUE(extend_pcr(*link, attestation::kMeasuredPcr, digest(9)));
  link = TpmLink::open("/dev/null");  // lets the emulator go: it serves one connection at a time
  EXPECT_EQ(attestation::check_measured(quote_of(*stating), claims_).error().message,
            "the TPM holds a measurement that the log does not list");
}

TEST_F(Tpm, ARestartOfTheDaemonMeasuresNothingTwiceAndFinishesWhatItBegan) {
  ASSERT_TRUE(signer()->measure(measured_));
  {
    auto again = signer();
    ASSERT_TRUE(again->measure(measured_));
    EXPECT_TRUE(attestation::check_measured(quote_of(*again), claims_));
  }
  // Killed after the line was written and before the PCR was extended.
  std::ofstream(log(), std::ios::app) << "3 " << to_hex(digest(4)) << "\n";
  auto finished = signer();
  auto claims = claims_;
  claims.prompt_digests = {digest(4)};
  EXPECT_TRUE(attestation::check_measured(quote_of(*finished), claims));
}

TEST_F(Tpm, TheAttestationKeyOutlivesARebootAndTheMeasurementsDoNot) {
  const crypto::Digest key = signer()->key_id();
  ASSERT_TRUE(signer()->measure(measured_));
  tpm_->reboot();
  std::filesystem::remove(log());  // as tmpfs does
  auto stating = signer();
  EXPECT_EQ(stating->key_id(), key);
  EXPECT_FALSE(attestation::check_measured(quote_of(*stating), claims_));
  ASSERT_TRUE(stating->measure(measured_));
  EXPECT_TRUE(attestation::check_measured(quote_of(*stating), claims_));
}

TEST_F(Tpm, ManyStatementsAtOnce) {
  auto stating = signer();
  std::vector<std::thread> threads;
  std::atomic<int> good = 0;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < 3; ++k) good += stating->state(as_bytes("claims"), Bytes(32, uint8_t(k))).has_value() ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 12);
}

TEST(TpmLinkTest, SaysWhenThereIsNoTpm) {
  EXPECT_FALSE(TpmSigner::open("/nonexistent/tpm", ""));
  EXPECT_FALSE(TpmSigner::open("/dev/null", ""));
}

}  // namespace
}  // namespace tie::tpm
