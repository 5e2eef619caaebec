// Claims, evidence, policy and the verifier: what a client must refuse, each for its own reason.
#include <gtest/gtest.h>

#include "attestation.pb.h"
#include "base/random.h"
#include "crypto/kem.h"
#include "keys/attestation/claims.h"
#include "keys/attestation/evidence.h"
#include "keys/attestation/verify.h"

namespace tie::attestation {
namespace {

Digest filled(uint8_t value) {
  Digest out;
  out.fill(value);
  return out;
}

std::string text_of(ByteView bytes) {
  return to_string(bytes);
}

class Node {
 public:
  Node() {
    kem = std::move(*crypto::kem_generate(crypto::KemId::kXWing));
    workload.binding_public_key = key_service.binding_public_key = Bytes(1216, 9);
    workload.release_id = filled(1);
    workload.model_ids = {filled(2)};
    key_service.kem_public_key = kem.public_key;
    key_service.suite = 0x647a;
    key_service.expires_unix_ms = 5000;
    key_service.key_uuid = "uuid";
  }
  v1::AttestationBundle bundle(ByteView challenge) const {
    v1::AttestationBundle out;
    to_proto(*workload_signer.state(encode(workload), challenge), *out.mutable_workload());
    to_proto(*key_service_signer.state(encode(key_service), challenge), *out.mutable_key_service());
    KemClaims claims{key_service.suite,           key_service.kem_public_key, workload.binding_public_key,
                     key_service.expires_unix_ms, workload.model_ids,         workload.prompt_digests};
    auto* proto = out.mutable_kem();
    proto->set_suite(claims.suite);
    proto->set_kem_public_key(text_of(claims.kem_public_key));
    proto->set_binding_public_key(text_of(claims.binding_public_key));
    proto->set_expires_unix_ms(claims.expires_unix_ms);
    for (const Digest& id : claims.model_ids) proto->add_model_ids(text_of(id));
    for (const Digest& id : claims.prompt_digests) proto->add_prompt_digests(text_of(id));
    out.set_key_id(text_of(key_id(claims)));
    auto* model = out.add_models();
    model->set_name("m");
    model->set_model_id(text_of(workload.model_ids.at(0)));
    return out;
  }
  crypto::KemKeyPair kem;
  WorkloadClaims workload;
  KeyServiceClaims key_service;
  SoftwareSigner workload_signer, key_service_signer;
};

const Bytes kChallenge(32, 0x55);
const Policy kPolicy{{filled(1)}, {"software"}, std::nullopt, std::nullopt};

Result<VerifiedNode> verify(const v1::AttestationBundle& bundle, const Policy& policy = kPolicy, uint64_t now = 1000) {
  return verify_bundle(bundle, policy, {kChallenge, now});
}

std::string refusal(const v1::AttestationBundle& bundle, const Policy& policy = kPolicy, uint64_t now = 1000) {
  auto said = verify(bundle, policy, now);
  return said ? "accepted" : said.error().message;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(VerifyBundle, AcceptsAnHonestNodeAndCallsItUnattested) {
  auto node = verify(Node().bundle(kChallenge));
  ASSERT_TRUE(node) << node.error().message;
  EXPECT_FALSE(node->attested);
  EXPECT_TRUE(contains(node->describe(), "unattested"));
  EXPECT_EQ(node->key.suite, crypto::kSuiteXWing);
  EXPECT_EQ(node->models.size(), 1u);
  EXPECT_EQ(node->release_id, filled(1));
}

TEST(VerifyBundle, RefusesAnotherReleaseModelOrPromptThanThePolicyPins) {
  Node node;
  Policy policy = kPolicy;
  policy.release_ids = {filled(8)};
  EXPECT_TRUE(contains(refusal(node.bundle(kChallenge), policy), "runs release"));
  policy = kPolicy;
  policy.model_ids = {filled(3)};
  EXPECT_TRUE(contains(refusal(node.bundle(kChallenge), policy), "a model that the policy does not pin"));
  policy.model_ids = {filled(2)};
  EXPECT_EQ(refusal(node.bundle(kChallenge), policy), "accepted");
  node.workload.prompt_digests = {filled(4)};
  EXPECT_EQ(refusal(node.bundle(kChallenge), policy), "accepted");
  policy.prompt_digests.emplace();
  EXPECT_TRUE(contains(refusal(node.bundle(kChallenge), policy), "a system prompt that the policy does not pin"));
}

TEST(VerifyBundle, RequiresBothEvidencesWithEqualBindingKeys) {
  Node node;
  auto bundle = node.bundle(kChallenge);
  bundle.clear_workload();
  EXPECT_TRUE(contains(refusal(bundle), "lacks the workload's evidence"));
  bundle = node.bundle(kChallenge);
  bundle.clear_key_service();
  EXPECT_TRUE(contains(refusal(bundle), "lacks the key service's evidence"));
  node.key_service.binding_public_key[0] ^= 1;
  EXPECT_TRUE(contains(refusal(node.bundle(kChallenge)), "different binding keys"));
}

TEST(VerifyBundle, RefusesAWrongOrReplayedChallenge) {
  EXPECT_TRUE(contains(refusal(Node().bundle(Bytes(32, 0x56))), "another challenge"));
  auto published = Node().bundle(epoch_challenge(77));
  published.set_publication_epoch(77);
  EXPECT_TRUE(contains(refusal(published), "another challenge"));
  EXPECT_TRUE(verify_bundle(published, kPolicy, {std::nullopt, 1000}));
  published.set_publication_epoch(78);
  EXPECT_FALSE(verify_bundle(published, kPolicy, {std::nullopt, 1000}));
}

TEST(VerifyBundle, RefusesAnExpiredKey) {
  auto bundle = Node().bundle(kChallenge);
  EXPECT_EQ(verify(bundle, kPolicy, 4999)->expires_unix_ms, 5000u);
  EXPECT_EQ(verify(bundle, kPolicy, 5000).error().code, Code::kKeyUnknownOrExpired);
}

TEST(VerifyBundle, RefusesAKindThePolicyDoesNotAccept) {
  Policy policy = kPolicy;
  policy.accepted_kinds = {"tpm"};
  EXPECT_TRUE(contains(refusal(Node().bundle(kChallenge), policy), "kind 'software'"));
  auto bundle = Node().bundle(kChallenge);
  bundle.mutable_workload()->set_kind("tdx");
  policy.accepted_kinds = {"software", "tdx"};
  EXPECT_TRUE(contains(refusal(bundle, policy), "cannot check"))
      << "a kind nobody can check is refused, not waved through";
}

TEST(VerifyBundle, RefusesClaimsThatNoEvidenceCovers) {
  const Node node;
  auto bundle = node.bundle(kChallenge);
  bundle.mutable_kem()->set_kem_public_key(std::string(1216, 'x'));
  EXPECT_TRUE(contains(refusal(bundle), "request key that the key service's evidence does not cover"));
  bundle = node.bundle(kChallenge);
  bundle.mutable_kem()->set_expires_unix_ms(99999);
  EXPECT_TRUE(contains(refusal(bundle), "another expiry"));
  bundle = node.bundle(kChallenge);
  bundle.mutable_kem()->add_model_ids(std::string(32, 'y'));
  EXPECT_TRUE(contains(refusal(bundle), "models that the workload's evidence does not cover"));
  bundle = node.bundle(kChallenge);
  bundle.mutable_kem()->add_prompt_digests(std::string(32, 'y'));
  EXPECT_TRUE(contains(refusal(bundle), "system prompts that the workload's evidence does not cover"));
  bundle = node.bundle(kChallenge);
  bundle.mutable_kem()->set_binding_public_key("other");
  EXPECT_TRUE(contains(refusal(bundle), "binding key that no evidence covers"));
  bundle = node.bundle(kChallenge);
  bundle.set_key_id(std::string(32, 'k'));
  EXPECT_TRUE(contains(refusal(bundle), "key id"));
  bundle = node.bundle(kChallenge);
  bundle.mutable_models(0)->set_model_id(std::string(32, 'y'));
  EXPECT_TRUE(contains(refusal(bundle), "offers a model"));
}

TEST(VerifyBundle, RefusesChangedSignaturesClaimsAndReportData) {
  const Node node;
  auto bundle = node.bundle(kChallenge);
  (*bundle.mutable_workload()->mutable_signature())[5] ^= 1;
  EXPECT_TRUE(contains(refusal(bundle), "signature"));
  bundle = node.bundle(kChallenge);
  (*bundle.mutable_workload()->mutable_claims())[40] ^= 1;
  EXPECT_TRUE(contains(refusal(bundle), "report data over other claims"));
  bundle = node.bundle(kChallenge);
  (*bundle.mutable_key_service()->mutable_report_data())[0] ^= 1;
  EXPECT_TRUE(contains(refusal(bundle), "report data over other claims"));
}

TEST(VerifyBundle, RefusesTheTwoEvidencesInEachOthersPlace) {
  auto bundle = Node().bundle(kChallenge);
  bundle.mutable_workload()->Swap(bundle.mutable_key_service());
  EXPECT_TRUE(contains(refusal(bundle), "canonical form"));
}

TEST(VerifyBundle, TellsEveryReasonWhenAsked) {
  Policy policy = kPolicy;
  policy.release_ids = {filled(8)};
  std::vector<Check> checks;
  EXPECT_FALSE(verify_bundle(Node().bundle(Bytes(32, 1)), policy, {kChallenge, 9000}, &checks));
  std::string failed;
  for (const Check& check : checks)
    if (!check.passed) failed += check.sentence + "\n";
  EXPECT_TRUE(contains(failed, "challenge") && contains(failed, "release") && contains(failed, "expired")) << failed;
  EXPECT_GT(checks.size(), 8u);
}

TEST(Claims, DecodeWhatTheyEncodeAndNothingElse) {
  WorkloadClaims claims{Bytes(1216, 3), filled(1), {filled(5), filled(2), filled(5)}, {}};
  const Bytes encoded = encode(claims);
  auto decoded = decode_workload_claims(encoded);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->model_ids, (std::vector<Digest>{filled(2), filled(5)})) << "sorted and without doubles";
  EXPECT_EQ(encode(*decoded), encoded);
  for (size_t length = 0; length < encoded.size(); ++length)
    EXPECT_FALSE(decode_workload_claims(ByteView(encoded).first(length)));
  Bytes longer = encoded;
  longer.push_back(0);
  EXPECT_FALSE(decode_workload_claims(longer));
  EXPECT_FALSE(decode_kem_claims(encoded));
  EXPECT_FALSE(decode_key_service_claims(encoded));
}

TEST(Claims, UnsortedDigestsAreNotCanonical) {
  Bytes encoded = encode(WorkloadClaims{{}, filled(1), {filled(2), filled(5)}, {}});
  std::swap_ranges(encoded.end() - 4 - 64, encoded.end() - 4 - 32, encoded.end() - 4 - 32);
  EXPECT_FALSE(decode_workload_claims(encoded));
}

TEST(Claims, KeyIdChangesWithEveryFact) {
  const KemClaims base{1, {1}, {2}, 3, {filled(4)}, {filled(5)}};
  std::vector<KemClaims> others(6, base);
  others[0].suite = 2;
  others[1].kem_public_key = {9};
  others[2].binding_public_key = {9};
  others[3].expires_unix_ms = 4;
  others[4].model_ids = {};
  others[5].prompt_digests = {filled(6)};
  for (const KemClaims& other : others) EXPECT_NE(key_id(other), key_id(base));
  EXPECT_NE(key_id(KemClaims{1, {1}, {2}, 3, {filled(4)}, {}}), key_id(KemClaims{1, {1}, {2}, 3, {}, {filled(4)}}));
}

TEST(Policy, RoundTripsAndRefusesWhatItDoesNotKnow) {
  Policy policy{{filled(0xab)}, {"software"}, std::vector<Digest>{filled(2)}, std::nullopt};
  auto parsed = parse_policy(render_policy(policy));
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->release_ids, policy.release_ids);
  EXPECT_EQ(parsed->model_ids, policy.model_ids);
  EXPECT_FALSE(parsed->prompt_digests);
  const std::string good = render_policy(policy);
  EXPECT_TRUE(contains(parse_policy(good + "relese_ids = []\n").error().message, "unknown key 'relese_ids'"));
  EXPECT_FALSE(parse_policy("accepted_kinds = [\"software\"]\n")) << "nothing pinned accepts nothing";
  EXPECT_FALSE(parse_policy("release_ids = [\"00\"]\naccepted_kinds = [\"software\"]\n"));
  EXPECT_FALSE(parse_policy("release_ids = [1]\naccepted_kinds = [\"software\"]\n"));
  EXPECT_FALSE(parse_policy("release_ids = \n"));
  EXPECT_FALSE(parse_policy("release_ids = \"x\"\n"));
  EXPECT_EQ(load_policy("/nonexistent/policy.toml").error().code, Code::kNotFound);
}

}  // namespace tie::attestation
