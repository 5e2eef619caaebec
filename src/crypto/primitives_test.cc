// What the vector files do not cover: signatures, pieces, files, in-place sealing, refusals.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "base/random.h"
#include "crypto/aead.h"
#include "crypto/ed25519.h"
#include "crypto/hkdf.h"
#include "crypto/passphrase_key.h"
#include "crypto/sha256.h"

namespace tie::crypto {

TEST(Sha256, PiecesFilesAndPartsAgree) {
  EXPECT_EQ(to_hex(sha256(as_bytes("abc"))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256({as_bytes("a"), as_bytes(""), as_bytes("bc")}), sha256(as_bytes("abc")));
  const std::string path = testing::TempDir() + "tie_sha256_" + random_hex(8);
  Bytes content(600'001, 'q');
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
  EXPECT_EQ(*sha256_file(path), sha256(content));
  std::remove(path.c_str());
  EXPECT_EQ(sha256_file(path).error().code, Code::kNotFound);
  EXPECT_EQ(to_hex(sha3_256({as_bytes("abc")})), "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532");
  EXPECT_FALSE(digest_from(Bytes(31), "a digest"));
}

TEST(Ed25519, AgreesWithTheRfcAndRefusesAChangedMessage) {
  auto seed = *from_hex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
  auto pair = ed25519_from_seed(seed);
  ASSERT_TRUE(pair);
  EXPECT_EQ(to_hex(pair->public_key), "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
  auto signature = ed25519_sign(seed, {});
  ASSERT_TRUE(signature);
  EXPECT_EQ(to_hex(*signature).substr(0, 32), "e5564300c360ac729086e2cc806e828a");
  EXPECT_TRUE(ed25519_verify(pair->public_key, {}, *signature));
  EXPECT_EQ(ed25519_verify(pair->public_key, as_bytes("x"), *signature).error().code, Code::kCorrupt);
  EXPECT_FALSE(ed25519_verify(ed25519_generate().public_key, {}, *signature));
  EXPECT_FALSE(ed25519_verify(Bytes(31), {}, *signature));
}

TEST(Aead, SealsInPlaceAndReusesItsContext) {
  auto key = AeadKey::create(AeadId::kAes256Gcm, random_secret(32).view());
  ASSERT_TRUE(key);
  for (uint8_t round = 0; round < 5; ++round) {
    Bytes nonce(12, round), text(1000, round), buffer = text;
    buffer.resize(text.size() + kAeadTagBytes);
    ASSERT_TRUE(key->seal_into(nonce, as_bytes("aad"), ByteView(buffer).first(text.size()), buffer));
    ASSERT_TRUE(key->open_into(nonce, as_bytes("aad"), buffer, std::span(buffer).first(text.size())));
    buffer.resize(text.size());
    EXPECT_EQ(buffer, text);
  }
}

TEST(Aead, AFailedOpenLeavesNoPlaintextAndTheKeyUsable) {
  auto key = AeadKey::create(AeadId::kAes256Gcm, random_secret(32).view());
  Bytes nonce(12, 1), sealed = *key->seal(nonce, {}, as_bytes("secret words")), out(12, 'x');
  sealed.back() ^= 1;
  EXPECT_EQ(key->open_into(nonce, {}, sealed, out).error().code, Code::kCorrupt);
  EXPECT_EQ(out, Bytes(12, 0));
  sealed.back() ^= 1;
  EXPECT_TRUE(key->open(nonce, {}, sealed));
  EXPECT_FALSE(key->open(Bytes(11), {}, sealed));
  EXPECT_FALSE(AeadKey::create(AeadId::kAes256Gcm, Bytes(16)));
}

TEST(PassphraseKey, AgreesWithTheVectorsOfRfc7914) {
  auto hex = [](const char* words, const char* salt, const PassphraseCost& cost) {
    return to_hex(key_from_passphrase(as_bytes(words), as_bytes(salt), cost, 64)->view()).substr(0, 32);
  };
  EXPECT_EQ(hex("", "", {4, 1, 1}), "77d6576238657b203b19ca42c18a0497");
  EXPECT_EQ(hex("password", "NaCl", {10, 8, 16}), "fdbabe1c9d3472007856e7190d01e9fe");
  EXPECT_EQ(hex("pleaseletmein", "SodiumChloride", {14, 8, 1}), "7023bdcb3afd7348461c06cd81fd38eb");
}

TEST(PassphraseKey, RefusesACostThatOnlyAnAttackerWouldAskFor) {
  for (PassphraseCost cost : {PassphraseCost{0, 8, 1}, {25, 8, 1}, {20, 64, 1}, {10, 8, 17}, {10, 0, 1}, {10, 8, 0}})
    EXPECT_EQ(key_from_passphrase(as_bytes("x"), as_bytes("y"), cost, 32).error().code, Code::kOutOfRange);
}

TEST(Hkdf, RefusesWhatTheRfcRefuses) {
  EXPECT_FALSE(hkdf_expand(Bytes(32), {}, kHkdfMaxBytes + 1));
  EXPECT_TRUE(hkdf_expand(Bytes(32), {}, kHkdfMaxBytes));
  EXPECT_FALSE(hkdf_expand(Bytes(31), {}, 1));
}

}  // namespace tie::crypto
