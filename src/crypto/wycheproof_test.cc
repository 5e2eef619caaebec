// The primitives against the published attack-minded vectors. Inputs that the product's narrower interfaces refuse by
// design (other nonce or key sizes) must be refused.
#include "crypto/aead.h"
#include "crypto/hkdf.h"
#include "crypto/testing/vector_files.h"
#include "crypto/x25519.h"
#include "edge_kem.h"

namespace tie::crypto {
namespace {

Bytes plain(const SecretBytes& secret) {
  return Bytes(secret.view().begin(), secret.view().end());
}

// Calls check(group, test, must_succeed) for every test of every copy of the file.
template <typename Check>
void for_each_test(const char* file, Check check) {
  auto copies = vector_files("crypto_wycheproof", file);
  ASSERT_FALSE(copies.empty());
  int count = 0;
  for (const auto& copy : copies) {
    for (const auto& group : copy.at("testGroups")) {
      for (const auto& test : group.at("tests")) {
        SCOPED_TRACE(std::string(file) + " test " + std::to_string(test.at("tcId").get<int>()));
        check(group, test, test.at("result").get<std::string>());
        ++count;
      }
    }
  }
  EXPECT_GT(count, 1);
}

}  // namespace

TEST(Wycheproof, AesGcm) {
  int opened = 0;
  for_each_test("aes_gcm_test.json", [&](const auto&, const auto& test, const std::string& result) {
    const Bytes key = hex_of(test, "key"), nonce = hex_of(test, "iv"), aad = hex_of(test, "aad"),
                text = hex_of(test, "msg");
    Bytes sealed = hex_of(test, "ct");
    append(sealed, hex_of(test, "tag"));
    auto aead = AeadKey::create(key.size() == 16 ? AeadId::kAes128Gcm : AeadId::kAes256Gcm, key);
    if (key.size() == 24) {
      EXPECT_FALSE(aead);
      return;
    }
    ASSERT_TRUE(aead);
    auto got = aead->open(nonce, aad, sealed);
    if (nonce.size() != kAeadNonceBytes) {
      EXPECT_FALSE(got);
      return;
    }
    EXPECT_EQ(got.has_value(), result == "valid");
    if (!got) return;
    ++opened;
    EXPECT_EQ(*got, text);
    EXPECT_EQ(*aead->seal(nonce, aad, text), sealed);
  });
  EXPECT_GT(opened, 5);
}

TEST(Wycheproof, HkdfSha256) {
  for_each_test("hkdf_sha256_test.json", [](const auto&, const auto& test, const std::string& result) {
    auto got =
        hkdf(hex_of(test, "salt"), hex_of(test, "ikm"), {hex_of(test, "info")}, test.at("size").template get<size_t>());
    ASSERT_EQ(got.has_value(), result == "valid");
    if (got) {
      EXPECT_EQ(plain(*got), hex_of(test, "okm"));
    }
  });
}

TEST(Wycheproof, X25519) {
  for_each_test("x25519_test.json", [](const auto&, const auto& test, const std::string& result) {
    const Bytes expected = hex_of(test, "shared");
    auto own = x25519_public(hex_of(test, "private"));
    ASSERT_TRUE(own);
    auto got = x25519_shared(hex_of(test, "private"), *own, hex_of(test, "public"));
    if (expected == Bytes(32, 0)) {
      EXPECT_FALSE(got) << "a low-order point must be refused";
      return;
    }
    if (result == "invalid") {
      EXPECT_FALSE(got);
      return;
    }
    ASSERT_TRUE(got);
    EXPECT_EQ(plain(*got), expected);
  });
}

TEST(Wycheproof, MlKem768Decapsulation) {
  for_each_test("mlkem_768_test.json", [](const auto&, const auto& test, const std::string& result) {
    const Bytes seed = hex_of(test, "seed"), sealed = hex_of(test, "c");
    bool lengths = seed.size() == EDGE_KEM_MLKEM768_SEED_BYTES && sealed.size() == EDGE_KEM_MLKEM768_CIPHERTEXT_BYTES;
    ASSERT_EQ(lengths, result == "valid") << "only lengths make these tests invalid; the C++ callers check them";
    if (!lengths) return;
    Bytes public_key(EDGE_KEM_MLKEM768_PUBLIC_BYTES), private_key(EDGE_KEM_MLKEM768_PRIVATE_BYTES), shared(32);
    ASSERT_EQ(edge_kem_mlkem768_keypair(seed.data(), public_key.data(), private_key.data()), EDGE_KEM_OK);
    ASSERT_EQ(edge_kem_mlkem768_decapsulate(private_key.data(), sealed.data(), shared.data()), EDGE_KEM_OK);
    EXPECT_EQ(shared, hex_of(test, "K"));
    if (test.contains("ek")) {
      EXPECT_EQ(public_key, hex_of(test, "ek"));
    }
  });
}

TEST(Wycheproof, MlKem768Encapsulation) {
  for_each_test("mlkem_768_encaps_test.json", [](const auto&, const auto& test, const std::string& result) {
    const Bytes public_key = hex_of(test, "ek"), randomness = hex_of(test, "m");
    if (public_key.size() != EDGE_KEM_MLKEM768_PUBLIC_BYTES || randomness.size() != 32) {
      EXPECT_EQ(result, "invalid");
      return;
    }
    Bytes sealed(EDGE_KEM_MLKEM768_CIPHERTEXT_BYTES), shared(32);
    const int said = edge_kem_mlkem768_encapsulate(public_key.data(), randomness.data(), sealed.data(), shared.data());
    ASSERT_EQ(said == EDGE_KEM_OK, result == "valid");
    if (said != EDGE_KEM_OK) return;
    EXPECT_EQ(sealed, hex_of(test, "c"));
    EXPECT_EQ(shared, hex_of(test, "K"));
  });
}

TEST(Wycheproof, MlKem768KeyGeneration) {
  for_each_test("mlkem_768_keygen_seed_test.json", [](const auto&, const auto& test, const std::string& result) {
    const Bytes seed = hex_of(test, "seed");
    if (seed.size() != EDGE_KEM_MLKEM768_SEED_BYTES) {
      EXPECT_EQ(result, "invalid");
      return;
    }
    Bytes public_key(EDGE_KEM_MLKEM768_PUBLIC_BYTES), private_key(EDGE_KEM_MLKEM768_PRIVATE_BYTES);
    ASSERT_EQ(edge_kem_mlkem768_keypair(seed.data(), public_key.data(), private_key.data()), EDGE_KEM_OK);
    EXPECT_EQ(public_key, hex_of(test, "ek"));
    EXPECT_EQ(private_key, hex_of(test, "dk"));
  });
}

TEST(Wycheproof, MlKem768DecapsulationWithAnExpandedKey) {
  for_each_test("mlkem_768_semi_expanded_decaps_test.json", [](const auto&, const auto& test,
                                                               const std::string& result) {
    const Bytes private_key = hex_of(test, "dk"), sealed = hex_of(test, "c");
    if (private_key.size() != EDGE_KEM_MLKEM768_PRIVATE_BYTES || sealed.size() != EDGE_KEM_MLKEM768_CIPHERTEXT_BYTES) {
      EXPECT_EQ(result, "invalid");
      return;
    }
    Bytes shared(32);
    const int said = edge_kem_mlkem768_decapsulate(private_key.data(), sealed.data(), shared.data());
    ASSERT_EQ(said == EDGE_KEM_OK, result == "valid");
    if (said == EDGE_KEM_OK) {
      EXPECT_EQ(shared, hex_of(test, "K"));
    }
  });
}

}  // namespace tie::crypto
