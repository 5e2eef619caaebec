// The published vectors of RFC 9474 and RFC 9578 (tests/data/privacy_pass).
#include "crypto/testing/vector_files.h"
#include "keys/tokens/token.h"

namespace tie::tokens {
namespace {

using crypto::hex_of;

nlohmann::json vectors_of(const char* file) {
  auto files = crypto::vector_files("privacy_pass", file);
  if (files.empty()) throw std::runtime_error(std::string("no vectors: ") + file);
  return files.front();
}

TEST(BlindRsa, MatchesTheVectorOfRfc9474) {
  const nlohmann::json vector = vectors_of("rfc9474.json").at("vector");
  const Bytes n = hex_of(vector, "n"), e = hex_of(vector, "e"), message = hex_of(vector, "msg");
  auto key = BlindRsaPublicKey::from_numbers(n, e);
  ASSERT_TRUE(key) << key.error().message;
  EXPECT_EQ(to_hex(emsa_pss_encode(message, hex_of(vector, "salt"), 4096)), vector.at("encoded_msg"));
  auto issuer = BlindRsaPrivateKey::from_numbers(n, e, hex_of(vector, "d"), hex_of(vector, "p"), hex_of(vector, "q"));
  ASSERT_TRUE(issuer) << issuer.error().message;
  auto blind_signature = issuer->sign(hex_of(vector, "blinded_msg"));
  ASSERT_TRUE(blind_signature);
  EXPECT_EQ(to_hex(*blind_signature), vector.at("blind_sig"));
  auto signature = key->finalize(message, *blind_signature, hex_of(vector, "inv"));
  ASSERT_TRUE(signature) << signature.error().message;
  EXPECT_EQ(to_hex(*signature), vector.at("sig"));
  EXPECT_TRUE(key->verify(message, *signature));
  EXPECT_EQ(key->verify(as_bytes("another message"), *signature).error().code, Code::kUnauthenticated);
}

TEST(PrivacyPass, MatchesTheVectorsOfRfc9578) {
  const nlohmann::json suite = vectors_of("rfc9578.json");
  auto issuer = BlindRsaPrivateKey::from_pem(suite.at("private_key_pem").get<std::string>());
  ASSERT_TRUE(issuer) << issuer.error().message;
  auto key = BlindRsaPublicKey::from_spki(hex_of(suite, "public_key"));
  ASSERT_TRUE(key);
  EXPECT_EQ(to_hex(issuer->public_key().spki()), suite.at("public_key"));
  ASSERT_EQ(suite.at("vectors").size(), 2u);
  for (const nlohmann::json& vector : suite.at("vectors")) {
    const Bytes challenge = hex_of(vector, "token_challenge");
    EXPECT_EQ(encode(*decode_challenge(challenge)), challenge);
    auto pending = PendingToken::begin_with(*key, challenge, hex_of(vector, "nonce"), hex_of(vector, "salt"),
                                            hex_of(vector, "blind"));
    ASSERT_TRUE(pending);
    EXPECT_EQ(to_hex(pending->request()), vector.at("token_request"));
    auto request = decode_request(pending->request());
    ASSERT_TRUE(request);
    EXPECT_EQ(request->truncated_key_id, key->key_id().back());
    auto response = issuer->sign(request->blinded_message);
    ASSERT_TRUE(response);
    EXPECT_EQ(to_hex(*response), vector.at("token_response"));
    auto token = pending->finish(*key, *response);
    ASSERT_TRUE(token) << token.error().message;
    EXPECT_EQ(to_hex(*token), vector.at("token"));
  }
}

TEST(BlindRsa, TheIssuerCannotRecogniseWhatItSigned) {
  auto issuer = BlindRsaPrivateKey::generate();
  ASSERT_TRUE(issuer);
  const BlindRsaPublicKey& key = issuer->public_key();
  // Of the same message every request differs, and so does every signature.
  auto first = key.blind(as_bytes("message")), second = key.blind(as_bytes("message"));
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->message, second->message);
  auto one = key.finalize(as_bytes("message"), *issuer->sign(first->message), first->inverse.view());
  auto two = key.finalize(as_bytes("message"), *issuer->sign(second->message), second->inverse.view());
  ASSERT_TRUE(one && two);
  EXPECT_NE(*one, *two);
  // A signature fits only its own blind.
  EXPECT_EQ(key.finalize(as_bytes("message"), *issuer->sign(first->message), second->inverse.view()).error().code,
            Code::kCorrupt);
}

TEST(BlindRsa, RefusesKeysAndMessagesOfAnotherForm) {
  auto issuer = BlindRsaPrivateKey::generate();
  Bytes spki = issuer->public_key().spki();
  EXPECT_TRUE(BlindRsaPublicKey::from_spki(spki));
  for (size_t at : {size_t{0}, size_t{20}, size_t{70}, spki.size() - 1}) {
    Bytes changed = spki;
    changed[at] ^= 1;
    EXPECT_FALSE(BlindRsaPublicKey::from_spki(changed)) << at;
  }
  Bytes even = spki;
  even[spki.size() - 6] &= 0xfe;
  EXPECT_FALSE(BlindRsaPublicKey::from_spki(even)) << "an even modulus";
  Bytes short_modulus = spki;
  short_modulus[81] = 0;  // the first byte of the modulus
  EXPECT_FALSE(BlindRsaPublicKey::from_spki(short_modulus));
  EXPECT_FALSE(BlindRsaPublicKey::from_spki(ByteView(spki).first(spki.size() - 1)));
  EXPECT_EQ(issuer->sign(Bytes(kModulusBytes, 0xff)).error().code, Code::kBadRequest);
  EXPECT_EQ(issuer->sign(Bytes(kModulusBytes - 1, 1)).error().code, Code::kBadRequest);
  const SecretBytes pem = issuer->pem();
  auto again = BlindRsaPrivateKey::from_pem(as_text(pem.view()));
  ASSERT_TRUE(again);
  EXPECT_EQ(again->public_key().key_id(), issuer->public_key().key_id());
  EXPECT_FALSE(BlindRsaPrivateKey::from_pem("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"));
}

}  // namespace
}  // namespace tie::tokens
