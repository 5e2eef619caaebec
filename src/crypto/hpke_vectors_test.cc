// HPKE and X-Wing against the vectors of the RFC and the drafts.
#include "crypto/hpke_receiver.h"
#include "crypto/testing/vector_files.h"

namespace tie::crypto {
namespace {

HpkeSuite suite_of(const nlohmann::json& v) {
  return {static_cast<KemId>(v.at("kem_id").get<int>()), static_cast<AeadId>(v.at("aead_id").get<int>())};
}

Bytes plain(const SecretBytes& secret) {
  return Bytes(secret.view().begin(), secret.view().end());
}

uint64_t sequence_of(const nlohmann::json& entry, size_t position) {
  if (!entry.contains("seq")) return position;
  return entry["seq"].is_string() ? std::stoull(entry["seq"].get<std::string>()) : entry["seq"].get<uint64_t>();
}

size_t length_of(const nlohmann::json& entry) {
  return entry["L"].is_string() ? std::stoull(entry["L"].get<std::string>()) : entry["L"].get<size_t>();
}

void check_messages(const nlohmann::json& v, ReceiverContext& receiver) {
  size_t position = 0;
  for (const auto& entry : v.at("encryptions")) {
    const uint64_t sequence = sequence_of(entry, position++);
    auto opened = receiver.open_at(sequence, hex_of(entry, "aad"), hex_of(entry, "ct"));
    ASSERT_TRUE(opened) << "sequence " << sequence;
    EXPECT_EQ(plain(*opened), hex_of(entry, "pt"));
    Bytes damaged = hex_of(entry, "ct");
    damaged[sequence % damaged.size()] ^= 1;
    EXPECT_FALSE(receiver.open_at(sequence, hex_of(entry, "aad"), damaged));
    EXPECT_FALSE(receiver.open_at(sequence + 1, hex_of(entry, "aad"), hex_of(entry, "ct")));
    EXPECT_FALSE(receiver.open_at(sequence, to_bytes("other"), hex_of(entry, "ct")));
  }
  for (const auto& entry : v.at("exports")) {
    auto value = receiver.export_secret(hex_of(entry, "exporter_context"), length_of(entry));
    ASSERT_TRUE(value);
    EXPECT_EQ(plain(*value), hex_of(entry, "exported_value"));
  }
}

void check_schedule(const nlohmann::json& v) {
  auto schedule = hpke_key_schedule(suite_of(v), hex_of(v, "shared_secret"), hex_of(v, "info"));
  ASSERT_TRUE(schedule);
  EXPECT_EQ(plain(schedule->key), hex_of(v, "key"));
  EXPECT_EQ(plain(schedule->base_nonce), hex_of(v, "base_nonce"));
  EXPECT_EQ(plain(schedule->exporter_secret), hex_of(v, "exporter_secret"));
}

void check_kem(const nlohmann::json& v) {
  const KemId kem = suite_of(v).kem;
  if (v.contains("ikmR")) {
    auto derived = kem_derive(kem, hex_of(v, "ikmR"));
    ASSERT_TRUE(derived);
    EXPECT_EQ(plain(derived->private_key), hex_of(v, "skRm"));
    EXPECT_EQ(derived->public_key, hex_of(v, "pkRm"));
  }
  auto pair = kem_from_private(kem, hex_of(v, "skRm"));
  ASSERT_TRUE(pair);
  EXPECT_EQ(pair->public_key, hex_of(v, "pkRm"));
  auto shared = kem_decapsulate(kem, hex_of(v, "skRm"), hex_of(v, "enc"));
  ASSERT_TRUE(shared);
  EXPECT_EQ(plain(*shared), hex_of(v, "shared_secret"));
  const char* randomness = v.contains("skEm") ? "skEm" : v.contains("eseed") ? "eseed" : nullptr;
  if (randomness == nullptr) return;
  auto sent = kem_encapsulate_with(kem, pair->public_key, hex_of(v, randomness));
  ASSERT_TRUE(sent);
  EXPECT_EQ(sent->enc, hex_of(v, "enc"));
  EXPECT_EQ(plain(sent->shared_secret), hex_of(v, "shared_secret"));
}

void check_sender(const nlohmann::json& v) {
  const HpkeSuite suite = suite_of(v);
  auto sender = setup_sender(suite, hex_of(v, "pkRm"), hex_of(v, "info"));
  ASSERT_TRUE(sender);
  auto receiver = ReceiverContext::from_private_key(suite, hex_of(v, "skRm"), sender->enc(), hex_of(v, "info"));
  ASSERT_TRUE(receiver);
  for (const char* text : {"first", "second", ""}) {
    auto sealed = sender->seal(as_bytes("aad"), as_bytes(text));
    ASSERT_TRUE(sealed);
    auto opened = receiver->open(as_bytes("aad"), *sealed);
    ASSERT_TRUE(opened);
    EXPECT_EQ(as_text(opened->view()), text);
  }
}

void check_file(const char* file) {
  auto copies = vector_files("hpke", file);
  ASSERT_FALSE(copies.empty());
  int whole = 0;
  for (const auto& copy : copies) {
    for (const auto& v : copy) {
      SCOPED_TRACE(v.value("suite_id", "no suite id"));
      check_kem(v);
      if (v.at("kdf_id") != kKdfHkdfSha256) continue;  // another KDF: the KEM half still counts
      ++whole;
      check_schedule(v);
      auto receiver =
          ReceiverContext::from_private_key(suite_of(v), hex_of(v, "skRm"), hex_of(v, "enc"), hex_of(v, "info"));
      ASSERT_TRUE(receiver);
      check_messages(v, *receiver);
      check_sender(v);
    }
  }
  EXPECT_GT(whole, 0);
}

}  // namespace

TEST(Hpke, AgreesWithTheVectorsOfTheRfc) {
  check_file("rfc9180_base_x25519_sha256.json");
}
TEST(Hpke, AgreesWithTheDraftForXWing) {
  check_file("hpke_xwing.json");
}
TEST(Hpke, AgreesWithAnIndependentImplementationForXWingAndAesGcm) {
  check_file("derived_hpke_xwing_aesgcm.json");
}

TEST(XWing, AgreesWithTheDraft) {
  auto copies = vector_files("hpke", "xwing_kem.json");
  ASSERT_FALSE(copies.empty());
  for (const auto& copy : copies) {
    for (const auto& v : copy) {
      auto pair = kem_from_private(KemId::kXWing, hex_of(v, "sk"));
      ASSERT_TRUE(pair);
      EXPECT_EQ(pair->public_key, hex_of(v, "pk"));
      auto sent = kem_encapsulate_with(KemId::kXWing, pair->public_key, hex_of(v, "eseed"));
      ASSERT_TRUE(sent);
      EXPECT_EQ(sent->enc, hex_of(v, "ct"));
      EXPECT_EQ(plain(sent->shared_secret), hex_of(v, "ss"));
      auto got = kem_decapsulate(KemId::kXWing, hex_of(v, "sk"), hex_of(v, "ct"));
      ASSERT_TRUE(got);
      EXPECT_EQ(plain(*got), hex_of(v, "ss"));
    }
  }
}

TEST(XWing, AChangedCiphertextGivesAnotherSecretInEveryRegion) {
  auto pair = kem_generate(KemId::kXWing);
  ASSERT_TRUE(pair);
  auto sent = kem_encapsulate(KemId::kXWing, pair->public_key);
  ASSERT_TRUE(sent);
  for (size_t at : {size_t{0}, size_t{700}, size_t{1087}, size_t{1088}, size_t{1110}}) {
    Bytes changed = sent->enc;
    changed[at] ^= 4;
    auto got = kem_decapsulate(KemId::kXWing, pair->private_key.view(), changed);
    ASSERT_TRUE(got);
    EXPECT_FALSE(equal_constant_time(got->view(), sent->shared_secret.view())) << at;
  }
}

TEST(Kem, RefusesLowOrderPointsAndWrongLengths) {
  const Bytes zero(32, 0);
  auto pair = kem_generate(KemId::kX25519HkdfSha256);
  ASSERT_TRUE(pair);
  EXPECT_FALSE(kem_encapsulate(KemId::kX25519HkdfSha256, zero));
  EXPECT_FALSE(kem_decapsulate(KemId::kX25519HkdfSha256, pair->private_key.view(), zero));
  EXPECT_FALSE(kem_encapsulate(KemId::kX25519HkdfSha256, Bytes(31, 1)));
  auto xwing = kem_generate(KemId::kXWing);
  ASSERT_TRUE(xwing);
  EXPECT_FALSE(kem_decapsulate(KemId::kXWing, xwing->private_key.view(), Bytes(1119, 1)));
  for (KemId id : {KemId::kXWing, KemId::kX25519HkdfSha256}) {
    Bytes expanded(*kem_expanded_bytes(id));
    EXPECT_FALSE(kem_expand(id, Bytes(31, 1), expanded));
    EXPECT_FALSE(kem_decapsulate_expanded(id, Bytes(expanded.size() - 1, 1), Bytes(kem_sizes(id)->encapsulated, 1)));
  }
  EXPECT_FALSE(kem_encapsulate(KemId::kXWing, Bytes(1217, 1)));
  Bytes overflow = xwing->public_key;
  overflow[0] = 0xff;
  overflow[1] |= 0x0f;
  EXPECT_FALSE(kem_encapsulate(KemId::kXWing, overflow)) << "a coefficient above the modulus";
  EXPECT_FALSE(kem_id_from(0x0010));
}

}  // namespace tie::crypto
