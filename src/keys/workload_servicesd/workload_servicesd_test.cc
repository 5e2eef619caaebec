// workload_servicesd without a process: tickets, keys, their rotation and death, and the three questions.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/random.h"
#include "crypto/request_open.h"
#include "crypto/request_seal.h"
#include "keys/attestation/verify.h"
#include "keys/workload_servicesd/asset_watch.h"
#include "keys/workload_servicesd/bundle.h"
#include "keys/workload_servicesd/key_keeper.h"
#include "keys/workload_servicesd/request_desk.h"
#include "keys/workload_servicesd/testing/fake_key_service.h"
#include "supervision/model_owner/served_version.h"

namespace tie::wsd {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDay = 24ll * 3600 * 1000;

TEST(TicketBook, ATicketOpensOnceAndOnlyInTime) {
  TicketBook book(1000);
  const Bytes ticket(32, 1), late(32, 2);
  const Ticket what{filled(1), filled(2)};
  ASSERT_TRUE(book.enter(ticket, what, 0));
  EXPECT_EQ(book.enter(ticket, what, 0).error().code, Code::kAlreadyExists);
  EXPECT_TRUE(book.present(ticket, 999));
  EXPECT_FALSE(book.present(ticket, 999)) << "used";
  ASSERT_TRUE(book.enter(late, what, 1000));
  EXPECT_FALSE(book.present(late, 2000)) << "expired";
  EXPECT_FALSE(book.present(Bytes(32, 3), 0)) << "never registered";
  EXPECT_EQ(book.enter(Bytes(31), what, 0).error().code, Code::kBadRequest);
}

TEST(TicketBook, IsBoundedAndExpiredTicketsMakeRoom) {
  TicketBook book(1000, 2);
  const Ticket what{};
  ASSERT_TRUE(book.enter(Bytes(32, 1), what, 0));
  ASSERT_TRUE(book.enter(Bytes(32, 2), what, 10));
  EXPECT_EQ(book.enter(Bytes(32, 3), what, 20).error().code, Code::kOverloaded);
  EXPECT_TRUE(book.enter(Bytes(32, 3), what, 1000));
  EXPECT_EQ(book.size(), 2u);
}

TEST(TicketBook, AReusedTicketOfAnEarlierTimeKeepsItsNewExpiry) {
  TicketBook book(1000);
  ASSERT_TRUE(book.enter(Bytes(32, 1), {}, 0));
  ASSERT_TRUE(book.present(Bytes(32, 1), 1));
  ASSERT_TRUE(book.enter(Bytes(32, 1), {}, 500));
  EXPECT_TRUE(book.present(Bytes(32, 1), 1200)) << "the first registration's expiry is not the second's";
}

class Keys : public ::testing::Test {
 protected:
  Keys() { remake({crypto::KemId::kXWing}); }
  void remake(std::vector<crypto::KemId> kems, size_t max_seen = 0) {
    ring = std::make_unique<KeyRing>(max_seen);
    keeper = std::make_unique<KeyKeeper>(service, *ring, signer, some_facts(), kems);
  }
  Result<void> step() { return keeper->step(now, 1'000'000 + now); }
  int64_t now = 0;
  FakeKeyService service;
  attestation::SoftwareSigner signer;
  std::unique_ptr<KeyRing> ring;
  std::unique_ptr<KeyKeeper> keeper;
};

TEST_F(Keys, TheFirstStepMakesAKeyThatAClientAccepts) {
  ASSERT_TRUE(step());
  const auto snapshot = ring->snapshot(now);
  ASSERT_EQ(snapshot.published.size(), 1u);
  const attestation::Policy policy{{filled(1)}, {"software"}, std::nullopt, std::nullopt};
  auto node = attestation::verify_bundle(*snapshot.published[0]->bundle, policy, {std::nullopt, 1'000'000});
  ASSERT_TRUE(node) << node.error().message;
  EXPECT_EQ(node->models[0].name, "model");
  EXPECT_EQ(node->models[0].context_tokens, 2048u);
  EXPECT_TRUE(step());
  EXPECT_EQ(service.generated, 1) << "one key is enough";
}

TEST_F(Keys, AClientAcceptsOneModelUnderTwoNames) {
  NodeFacts facts = some_facts();
  facts.models.push_back(facts.models.front());
  facts.models.back().name = "zwilling";
  keeper = std::make_unique<KeyKeeper>(service, *ring, signer, facts, std::vector{crypto::KemId::kXWing});
  ASSERT_TRUE(step());
  const auto snapshot = ring->snapshot(now);
  const attestation::Policy policy{{filled(1)}, {"software"}, std::nullopt, std::nullopt};
  auto node = attestation::verify_bundle(*snapshot.published.at(0)->bundle, policy, {std::nullopt, 1'000'000});
  ASSERT_TRUE(node) << node.error().message;
  EXPECT_EQ(node->models.size(), 2u);
}

TEST_F(Keys, EachSuiteHasItsKeyAndTheNewestOfEachIsPublished) {
  remake({crypto::KemId::kXWing, crypto::KemId::kX25519HkdfSha256});
  ASSERT_TRUE(step());
  EXPECT_EQ(ring->snapshot(now).published.size(), 2u);
}

TEST_F(Keys, RotateAtHalfLifeWithOverlapAndDieAfterGrace) {
  ASSERT_TRUE(step());
  const auto first = ring->snapshot(now).published[0];
  now = kDay / 2 - 1;
  ASSERT_TRUE(step());
  EXPECT_EQ(service.generated, 1);
  now = kDay / 2;
  ASSERT_TRUE(step());
  EXPECT_EQ(service.generated, 2);
  auto snapshot = ring->snapshot(now);
  ASSERT_EQ(snapshot.published.size(), 1u);
  EXPECT_NE(snapshot.published[0]->id, first->id);
  EXPECT_EQ(snapshot.accepted.size(), 2u) << "the old key is still accepted";
  now = kDay + kGraceMs - 1;
  EXPECT_TRUE(ring->find(first->id, now));
  now = kDay + kGraceMs;
  EXPECT_EQ(ring->find(first->id, now).error().code, Code::kKeyUnknownOrExpired)
      << "checked at the use, before any reaper ran";
  ASSERT_TRUE(step());
  EXPECT_EQ(ring->size(), 2u) << "the second and the third key";
  EXPECT_GE(service.destroyed, 1);
}

TEST_F(Keys, AChangeOfModelsOrPromptsRotates) {
  ASSERT_TRUE(step());
  NodeFacts facts = some_facts();
  facts.prompt_digests = {filled(7)};
  keeper->set_facts(facts);
  ASSERT_TRUE(step());
  EXPECT_EQ(service.generated, 2);
  EXPECT_EQ(ring->snapshot(now).published[0]->claims.prompt_digests, facts.prompt_digests);
  EXPECT_EQ(ring->snapshot(now).accepted.size(), 2u);
  ASSERT_TRUE(step());
  EXPECT_EQ(service.generated, 2);
}

TEST_F(Keys, AChangedBootIdDestroysEveryBindingKeyAndMakesNewOnes) {
  ASSERT_TRUE(step());
  const auto old = ring->snapshot(now).published[0];
  service.restart();
  service.changed = true;
  ASSERT_TRUE(step());
  const auto snapshot = ring->snapshot(now);
  ASSERT_EQ(snapshot.accepted.size(), 1u);
  EXPECT_NE(snapshot.accepted[0], old->id);
  EXPECT_EQ(snapshot.revoked, std::vector<crypto::Digest>{old->id});
}

TEST_F(Keys, ASilentKeyServiceIsAskedWithBackOffAndInTheEndEveryKeyDies) {
  ASSERT_TRUE(step());
  service.reachable = false;
  service.heartbeats = 0;
  now = kHeartbeatMs;
  std::vector<int64_t> asked;
  for (; ring->size() != 0 && now < kHeartbeatMs + 600'000; now += 100) {
    const int before = service.heartbeats;
    (void)step();
    if (service.heartbeats != before) asked.push_back(now - kHeartbeatMs);
  }
  EXPECT_EQ(asked, (std::vector<int64_t>{0, 1000, 3000, 7000, 15000, 31000, 63000, 127000, 255000}))
      << "1 to 128 s, then no key is left";
  EXPECT_EQ(ring->size(), 0u);
  service.reachable = true;
  now += 2000;
  ASSERT_TRUE(step());
  EXPECT_EQ(ring->size(), 1u);
}

TEST_F(Keys, TheNodeStartsWhenTheKeyServiceComesLater) {
  service.reachable = false;
  EXPECT_FALSE(step());
  EXPECT_EQ(ring->size(), 0u);
  service.reachable = true;
  now += kFirstBackoffMs;
  ASSERT_TRUE(step());
  EXPECT_EQ(ring->size(), 1u);
}

TEST_F(Keys, AFullSeenSetRevokesTheKeyAndANewOneIsMade) {
  remake({crypto::KemId::kXWing}, 2);
  ASSERT_TRUE(step());
  const auto key = ring->snapshot(now).published[0];
  EXPECT_TRUE(ring->mark_seen(key->id, filled(1), now));
  EXPECT_EQ(ring->mark_seen(key->id, filled(1), now).error().code, Code::kReplayed);
  EXPECT_TRUE(ring->mark_seen(key->id, filled(2), now));
  EXPECT_EQ(ring->mark_seen(key->id, filled(3), now).error().code, Code::kKeyUnknownOrExpired);
  EXPECT_FALSE(ring->find(key->id, now));
  ASSERT_TRUE(step());
  EXPECT_EQ(ring->size(), 1u);
  EXPECT_EQ(service.destroyed, 1);
}

TEST_F(Keys, ARevokedKeyIsReplacedAndListed) {
  ASSERT_TRUE(step());
  const auto key = ring->snapshot(now).published[0];
  keeper->revoke(key->id);
  EXPECT_FALSE(ring->find(key->id, now));
  ASSERT_TRUE(step());
  EXPECT_EQ(ring->snapshot(now).revoked, std::vector<crypto::Digest>{key->id});
  EXPECT_EQ(ring->size(), 1u);
}

TEST_F(Keys, RestartsOfThisDaemonDoNotFillTheKeyService) {
  for (int start = 0; start < 100; ++start) {
    remake({crypto::KemId::kXWing});
    ASSERT_TRUE(step()) << "start " << start;
  }
  EXPECT_EQ(service.store->count(), 1u) << "the keys of earlier starts, whose binding keys are gone, were destroyed";
}

class Desk : public Keys {
 protected:
  Desk() {
    EXPECT_TRUE(step());
    now = monotonic_ms();  // the desk reads the real clock
    remake({crypto::KemId::kXWing});
    EXPECT_TRUE(step());
    key = ring->snapshot(now).published.at(0);
    sent = std::move(*crypto::kem_encapsulate(key->kem, key->claims.kem_public_key));
  }
  RequestDesk desk() { return RequestDesk(service, *ring, tickets, signer); }
  v1::AuthorizeRequest authorize_request(ByteView ticket) const {
    v1::AuthorizeRequest request;
    request.set_ticket(to_string(ticket));
    request.set_key_id(to_string(key->id));
    request.set_enc_sha256(to_string(crypto::sha256(sent.enc)));
    return request;
  }
  v1::DecapRequest decap_request(ByteView ticket) const {
    v1::DecapRequest request;
    request.set_ticket(to_string(ticket));
    request.set_key_id(to_string(key->id));
    request.set_encapsulated_key(to_string(sent.enc));
    return request;
  }
  TicketBook tickets{1000};
  std::shared_ptr<const RequestKey> key;
  crypto::Encapsulation sent;
  const Bytes ticket = Bytes(32, 9);
};

TEST_F(Desk, GivesTheSharedSecretOnceForATicket) {
  EXPECT_FALSE(desk().authorize(authorize_request(ticket)).has_error());
  const auto reply = desk().decap(decap_request(ticket));
  ASSERT_FALSE(reply.has_error()) << reply.error().message();
  EXPECT_EQ(reply.shared_secret(), as_text(sent.shared_secret.view()));
  EXPECT_EQ(reply.suite(), 0x647au);
  EXPECT_EQ(to_bytes(reply.hpke_info()), crypto::request_info(crypto::kSuiteXWing, key->id));
  EXPECT_EQ(desk().decap(decap_request(ticket)).error().code(), v1::UNAUTHENTICATED) << "used";
  EXPECT_EQ(desk().authorize(authorize_request(Bytes(32, 10))).error().code(), v1::REPLAYED)
      << "a second ticket for the same request";
  EXPECT_EQ(service.decapsulated, 1);
}

TEST_F(Desk, RefusesEveryOtherUseOfATicketWithOneAnswer) {
  const auto refused = [&](const v1::DecapRequest& request) {
    const auto reply = desk().decap(request);
    EXPECT_TRUE(reply.shared_secret().empty());
    return reply.error().SerializeAsString();
  };
  const std::string without = refused(decap_request(ticket));
  EXPECT_FALSE(without.empty());
  auto other_enc = decap_request(ticket), other_key = decap_request(ticket), short_enc = decap_request(ticket);
  (*other_enc.mutable_encapsulated_key())[3] ^= 1;
  (*other_key.mutable_key_id())[3] ^= 1;
  short_enc.mutable_encapsulated_key()->pop_back();
  for (const auto& request : {other_enc, other_key, short_enc}) {
    ASSERT_FALSE(desk().authorize(authorize_request(ticket)).has_error());
    EXPECT_EQ(refused(request), without);
    EXPECT_EQ(refused(decap_request(ticket)), without) << "a misused ticket is used";
  }
  EXPECT_EQ(service.decapsulated, 0);
}

TEST_F(Desk, AnExpiredTicketOpensNothing) {
  TicketBook short_lived(1);
  RequestDesk quick(service, *ring, short_lived, signer);
  ASSERT_FALSE(quick.authorize(authorize_request(ticket)).has_error());
  const int64_t until = monotonic_ms() + 3;
  while (monotonic_ms() < until) {
  }
  EXPECT_EQ(quick.decap(decap_request(ticket)).error().code(), v1::UNAUTHENTICATED);
}

TEST_F(Desk, ADestroyedKeyOpensNothing) {
  ASSERT_FALSE(desk().authorize(authorize_request(ticket)).has_error());
  ring->revoke(key->id);
  EXPECT_EQ(desk().decap(decap_request(ticket)).error().code(), v1::UNAUTHENTICATED);
  EXPECT_EQ(desk().authorize(authorize_request(ticket)).error().code(), v1::KEY_UNKNOWN_OR_EXPIRED);
}

TEST_F(Desk, SaysThatTheKeyServiceIsAway) {
  ASSERT_FALSE(desk().authorize(authorize_request(ticket)).has_error());
  service.reachable = false;
  EXPECT_EQ(desk().decap(decap_request(ticket)).error().code(), v1::NOT_READY);
}

TEST_F(Desk, AnswersAChallengeWithFreshEvidenceOverTheSameKey) {
  v1::ClaimsRequest request;
  request.set_challenge(std::string(20, 'c'));
  const auto reply = desk().claims(request);
  ASSERT_FALSE(reply.has_error()) << reply.error().message();
  const attestation::Policy policy{{filled(1)}, {"software"}, std::nullopt, std::nullopt};
  auto node = attestation::verify_bundle(reply.bundle(), policy, {Bytes(20, 'c'), static_cast<uint64_t>(1'000'000)});
  ASSERT_TRUE(node) << node.error().message;
  EXPECT_EQ(node->key.key_id, Bytes(key->id.begin(), key->id.end())) << "the key id stays";
  request.set_challenge("short");
  EXPECT_EQ(desk().claims(request).error().code(), v1::BAD_REQUEST);
  request.set_challenge(std::string(20, 'c'));
  request.set_key_id(std::string(32, 'x'));
  EXPECT_EQ(desk().claims(request).error().code(), v1::KEY_UNKNOWN_OR_EXPIRED);
}

// A node's files with one model.
class NodeFactsTest : public ::testing::Test {
 protected:
  NodeFactsTest() {
    for (const char* folder : {"assets/models/one", "assets/prompts", "served"}) fs::create_directories(root / folder);
    put("manifest", std::string(64, 'a') + "  libexec/tie/cloudboardd\n");
    put("assets/models/one/weights.gguf", "w");
    put("assets/models/one/tokenizer.img", "t");
    put("assets/models/one/model.toml", "context_tokens = 4096\n");
  }
  ~NodeFactsTest() override { fs::remove_all(root); }
  void put(const char* path, const std::string& text) {
    std::ofstream(root / "new") << text;
    fs::rename(root / "new", root / path);
  }
  Result<NodeFacts> facts() { return read_node_facts(root / "manifest", root / "assets", root / "served"); }
  Result<void> serve(const crypto::Digest& id) { return owner::write_served(root / "served", "one", {.model_id = id}); }

  const fs::path root = fs::path(testing::TempDir()) / ("tie_facts_" + random_hex(6));
};

TEST_F(NodeFactsTest, ComeFromTheManifestAndTheAssets) {
  put("assets/models/one/model.toml", "context_tokens = 4096\narchitecture = \"llama\"\nother = 1\n");
  put("assets/prompts/p.json", "{}");
  auto found = read_node_facts(root / "manifest", root / "assets");
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->release_id, crypto::sha256(as_bytes(std::string(64, 'a') + "  libexec/tie/cloudboardd\n")));
  ASSERT_EQ(found->models.size(), 1u);
  EXPECT_EQ(found->models[0].context_tokens, 4096u);
  EXPECT_EQ(found->prompt_digests, std::vector<crypto::Digest>{crypto::sha256(as_bytes("{}"))});
  const auto before = found->models[0].model_id;
  put("assets/models/one/weights.gguf", "W");
  EXPECT_NE(read_node_facts(root / "manifest", root / "assets")->models[0].model_id, before)
      << "one byte of the weights is another model";
  put("assets/prompts/q.json", "{}");
  EXPECT_EQ(read_node_facts(root / "manifest", root / "assets")->prompt_digests.size(), 1u) << "one text, two names";
  put("manifest", std::string(64, 'a') + " libexec\n");
  EXPECT_EQ(release_id_of(root / "manifest").error().code, Code::kCorrupt);
  put("manifest", std::string(64, 'a') + "  libexec");
  EXPECT_EQ(release_id_of(root / "manifest").error().code, Code::kCorrupt) << "cut";
}

// An upgrade that the owner has refused lies on disk; what answers is the version before.
TEST_F(NodeFactsTest, NameTheModelThatIsServed) {
  auto first = facts();
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(first->models[0].context_tokens, 4096u) << "before the owner says anything the files are stated";
  ASSERT_TRUE(serve(first->models[0].model_id));
  EXPECT_EQ(*facts(), *first);

  AssetWatch watch(root / "manifest", root / "assets", root / "served");
  const auto seen = [&] {  // the first look sees the change, the second that it is over
    EXPECT_FALSE(watch.look());
    return watch.look();
  };
  put("assets/models/one/weights.gguf", "second");
  put("assets/models/one/model.toml", "context_tokens = 1\n");
  auto refused = seen();
  ASSERT_TRUE(refused);
  ASSERT_EQ(refused->models.size(), 1u);
  EXPECT_EQ(refused->models[0].model_id, first->models[0].model_id);
  EXPECT_EQ(refused->models[0].context_tokens, 0u) << "the record on disk is another model's";
  fs::remove(root / "assets/models/one/tokenizer.img");
  auto unreadable = seen();
  ASSERT_TRUE(unreadable) << "nor can a version that is not whole hide what is served";
  EXPECT_EQ(unreadable->models[0].model_id, first->models[0].model_id);

  put("assets/models/one/tokenizer.img", "t");
  const auto second = read_node_facts(root / "manifest", root / "assets")->models[0];
  ASSERT_NE(second.model_id, first->models[0].model_id);
  ASSERT_TRUE(serve(second.model_id));
  auto taken = seen();
  ASSERT_TRUE(taken) << "what the owner says is a change as well";
  EXPECT_EQ(taken->models[0], second);
}

// All weights at each start of the owner, and once more for each of its models, would be minutes.
TEST_F(NodeFactsTest, AreNotReadOffTheWeightsWhereOwnerAndRecordSayWhichModelItIs) {
  const crypto::Digest id = crypto::sha256(as_bytes("one"));
  const auto made_for = [&](const crypto::Digest& model) {
    put("assets/models/one/model.toml", "context_tokens = 4096\nmodel_id = \"" + to_hex(model) + "\"\n");
    return facts();
  };
  fs::remove(root / "assets/models/one/tokenizer.img");  // nobody could tell the id from these files
  ASSERT_TRUE(serve(id));
  auto told = made_for(id);
  ASSERT_TRUE(told) << told.error().message;
  EXPECT_EQ(told->models.at(0).model_id, id);
  EXPECT_EQ(told->models.at(0).context_tokens, 4096u);
  told = made_for(crypto::sha256(as_bytes("another")));
  ASSERT_TRUE(told) << told.error().message;
  EXPECT_EQ(told->models.at(0).model_id, id);
  EXPECT_EQ(told->models.at(0).context_tokens, 0u) << "the record on disk is another model's";
}

TEST(SecretMemory, HoldsAndMoves) {
  auto memory = SecretMemory::create(32);
  ASSERT_TRUE(memory);
  memory->span()[31] = 7;
  SecretMemory other = std::move(*memory);
  EXPECT_EQ(other.view()[31], 7);
  EXPECT_EQ(other.hidden(), hidden_memory_available());
}

}  // namespace
}  // namespace tie::wsd
