// The formats of docs/wire-format.md against vectors from an independent implementation
// (tests/integration/independent/sealed_stream.py): an agreement that a round trip between our own two halves could not
// show.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "crypto/message_splitter.h"
#include "crypto/request_open.h"
#include "keys/attestation/claims.h"
#include "keys/attestation/evidence.h"

namespace tie::attestation {
namespace {

class WireFormat : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream in(TIE_SOURCE_DIR "/tests/data/sealed_stream/vectors.json");
    ASSERT_TRUE(in);
    vectors_ = nlohmann::json::parse(in);
  }
  Bytes one(const char* name) const { return *from_hex(vectors_.at(name).get<std::string>()); }
  std::vector<Bytes> many(const char* name) const {
    std::vector<Bytes> out;
    for (const auto& item : vectors_.at(name)) out.push_back(*from_hex(item.get<std::string>()));
    return out;
  }
  Result<crypto::OpenedRequest> opened() const {
    const auto shared = crypto::kem_decapsulate(crypto::KemId::kX25519HkdfSha256, one("node_private"), one("enc"));
    EXPECT_EQ(to_bytes(as_text(shared->view())), one("shared_secret"));
    return crypto::OpenedRequest::open(crypto::kSuiteX25519, one("key_id"), one("enc"), shared->view(),
                                       one("sealed_dek"));
  }
  nlohmann::json vectors_;
};

Digest filled(uint8_t value) {
  Digest out;
  out.fill(value);
  return out;
}

}  // namespace

TEST_F(WireFormat, ANodeOpensTheRequestOfAnIndependentClient) {
  auto request = opened();
  ASSERT_TRUE(request);
  auto open = request->chunk_opener(one("clear_parameters"));
  crypto::MessageSplitter splitter(1000);
  std::vector<Bytes> messages;
  const auto chunks = many("chunks");
  for (size_t i = 0; i < chunks.size(); ++i) {
    auto plaintext = open->open(chunks[i], i + 1 == chunks.size());
    ASSERT_TRUE(plaintext) << i;
    ASSERT_TRUE(splitter.feed(*plaintext));
    while (auto message = splitter.next()) messages.push_back(*message);
  }
  EXPECT_TRUE(splitter.finish());
  EXPECT_TRUE(open->end_of_stream());
  EXPECT_EQ(messages, many("messages"));
  EXPECT_EQ(to_bytes(as_text(request->derive_key("kv-cache")->view())), one("derived_kv_cache"));
}

TEST_F(WireFormat, TheResponseIsTheSameToTheByte) {
  auto context = crypto::ReceiverContext::from_shared_secret(crypto::kSuiteX25519, one("shared_secret"),
                                                             crypto::request_info(crypto::kSuiteX25519, one("key_id")));
  auto secret = context->export_secret(as_bytes(crypto::kResponseExportLabel), 32);
  auto keys = crypto::response_keys(secret->view(), one("enc"), one("salt"));
  ASSERT_TRUE(keys);
  const auto events = many("events"), chunks = many("response_chunks");
  for (size_t i = 0; i < events.size(); ++i) {
    const Bytes aad = crypto::chunk_aad(crypto::kResponseAadLabel, i, i + 1 == events.size());
    EXPECT_EQ(*keys->key.seal(crypto::hpke_nonce(keys->base_nonce, i), aad, events[i]), chunks[i]) << i;
  }
}

TEST_F(WireFormat, ClaimsAreTheSameToTheByte) {
  const KemClaims kem{0x647a,     Bytes(1216, 1), Bytes(1216, 2), 1'800'000'000'123, {filled(9), filled(3), filled(9)},
                      {filled(4)}};
  EXPECT_EQ(encode(kem), one("kem_claims"));
  const Digest id = key_id(kem);
  EXPECT_EQ(Bytes(id.begin(), id.end()), one("kem_claims_key_id"));
  EXPECT_EQ(encode(WorkloadClaims{Bytes(1216, 2), filled(5), {filled(9), filled(3)}, {}}), one("workload_claims"));
  EXPECT_EQ(encode(KeyServiceClaims{Bytes(1216, 1), 0x647a, Bytes(1216, 2), 1'800'000'000'123,
                                    "01234567-89ab-4cde-8f01-23456789abcd"}),
            one("key_service_claims"));
  EXPECT_TRUE(decode_kem_claims(one("kem_claims")) && decode_workload_claims(one("workload_claims")) &&
              decode_key_service_claims(one("key_service_claims")));
}

TEST_F(WireFormat, EvidenceIsTheSameToTheByte) {
  const auto report = report_data(one("workload_claims"), one("challenge"));
  EXPECT_EQ(Bytes(report.begin(), report.end()), one("evidence_report_data"));
  Evidence evidence{std::string(kKindSoftware),
                    one("workload_claims"),
                    one("challenge"),
                    one("evidence_report_data"),
                    one("evidence_public_key"),
                    one("evidence_signature"),
                    {}};
  EXPECT_TRUE(check_evidence(evidence, "the workload's"));
  evidence.signature[0] ^= 1;
  EXPECT_FALSE(check_evidence(evidence, "the workload's"));
  const auto epoch = epoch_challenge(7);
  EXPECT_EQ(Bytes(epoch.begin(), epoch.end()), one("epoch_7_challenge"));
}

}  // namespace tie::attestation
