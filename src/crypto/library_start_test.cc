#include "crypto/library_start.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>

#include <memory>

#include "base/bytes.h"
#include "crypto/aead.h"
#include "crypto/hkdf.h"
#include "crypto/sha256.h"

namespace tie::crypto {
namespace {

class LibraryStart : public testing::Test {
 protected:
  static void SetUpTestSuite() { start_library_for_one_request(); }
};

TEST_F(LibraryStart, WhatARequestTakesIsThere) {
  EXPECT_EQ(to_hex(sha256(as_bytes("abc"))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  // RFC 5869, A.1.
  Bytes ikm(22, 0x0b), salt(13), info(10);
  for (size_t i = 0; i < salt.size(); ++i) salt[i] = static_cast<uint8_t>(i);
  for (size_t i = 0; i < info.size(); ++i) info[i] = static_cast<uint8_t>(0xf0 + i);
  auto okm = hkdf(salt, ikm, {info}, 42);
  ASSERT_TRUE(okm);
  EXPECT_EQ(to_hex(okm->view()),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865");
  // NIST's GCM test case 14: 256 zero bits of key, one zero block.
  auto sealed = aead_seal(Bytes(32), Bytes(12), {}, Bytes(16));
  ASSERT_TRUE(sealed);
  EXPECT_EQ(to_hex(*sealed), "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919");
  auto opened = aead_open(Bytes(32), Bytes(12), {}, *sealed);
  ASSERT_TRUE(opened);
  EXPECT_EQ(*opened, Bytes(16));
  // Tokens are RSA-PSS with SHA-384.
  EXPECT_NE(EVP_sha384(), nullptr);
  std::unique_ptr<EVP_MD, decltype(&EVP_MD_free)> sha384(EVP_MD_fetch(nullptr, "SHA384", nullptr), EVP_MD_free);
  EXPECT_NE(sha384, nullptr);
  std::unique_ptr<EVP_SIGNATURE, decltype(&EVP_SIGNATURE_free)> rsa(EVP_SIGNATURE_fetch(nullptr, "RSA", nullptr),
                                                                    EVP_SIGNATURE_free);
  EXPECT_NE(rsa, nullptr);
}

TEST_F(LibraryStart, NothingElseIs) {
#ifdef TIE_SANITIZED
  GTEST_SKIP() << "the shared libcrypto has all algorithms";
#endif
  EXPECT_EQ(EVP_CIPHER_fetch(nullptr, "AES-128-GCM", nullptr), nullptr);
  EXPECT_EQ(EVP_CIPHER_fetch(nullptr, "ChaCha20-Poly1305", nullptr), nullptr);
  EXPECT_EQ(EVP_MD_fetch(nullptr, "MD5", nullptr), nullptr);
  EXPECT_EQ(EVP_KDF_fetch(nullptr, "HKDF", nullptr), nullptr);
  EXPECT_EQ(EVP_SIGNATURE_fetch(nullptr, "ED25519", nullptr), nullptr);
}

}  // namespace
}  // namespace tie::crypto
