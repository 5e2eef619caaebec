// Blind RSA signatures as RSABSSA-SHA384-PSS-Deterministic: a signer signs a message that it cannot see, and cannot
// recognise the signature later. The client blinds and finalizes, the issuer signs, anyone verifies (the result is an
// ordinary RSASSA-PSS signature). Pure functions over libcrypto; any thread; private keys die with their objects. Keys
// of Privacy Pass have 2,048 bits and the exponent 65537; other sizes exist for the published vectors only. Untrusted
// input: every byte string. Source: RFC 9474; keys as SubjectPublicKeyInfo: RFC 9578, section 6.5.
#pragma once
#include <memory>
#include <string>

#include "base/secret_bytes.h"
#include "crypto/sha256.h"

struct evp_pkey_st;
struct bignum_st;

namespace tie::tokens {

constexpr size_t kModulusBytes = 256;
constexpr size_t kSpkiBytes = 342;
constexpr size_t kSaltBytes = 48;
constexpr size_t kMaxPemBytes = 8 << 10;

struct PkeyFree {
  void operator()(evp_pkey_st* key) const;
};
struct BignumFree {
  void operator()(bignum_st* number) const;  // zeroes
};
using Pkey = std::unique_ptr<evp_pkey_st, PkeyFree>;
using Bignum = std::unique_ptr<bignum_st, BignumFree>;

struct Blinded {
  Bytes message;        // for the issuer
  SecretBytes inverse;  // for finalize(); whoever knows it can link the signature to the request
};

class BlindRsaPublicKey {
 public:
  // The one DER form that RFC 9578 allows, with 2,048 bits and exponent 65537; kBadRequest for anything else.
  static Result<BlindRsaPublicKey> from_spki(ByteView spki);
  // Any modulus of 2,048 to 4,096 bits: for vectors and for the private key's other half. Big-endian.
  static Result<BlindRsaPublicKey> from_numbers(ByteView modulus, ByteView exponent);
  BlindRsaPublicKey(BlindRsaPublicKey&&) noexcept;
  BlindRsaPublicKey& operator=(BlindRsaPublicKey&&) noexcept;
  ~BlindRsaPublicKey();

  Bytes spki() const;
  crypto::Digest key_id() const;  // SHA-256 of spki()
  size_t modulus_bytes() const { return modulus_bytes_; }

  // kUnauthenticated when the signature is not this key's over `message`. Cost: about 0.04 ms.
  Result<void> verify(ByteView message, ByteView signature) const;
  Result<Blinded> blind(ByteView message) const;
  // With the salt and the blind of a vector. kBadRequest when the blind has no inverse.
  Result<Blinded> blind_with(ByteView message, ByteView salt, ByteView blind) const;
  // The signature over `message`; kCorrupt when the issuer's answer does not give one.
  Result<Bytes> finalize(ByteView message, ByteView blind_signature, ByteView inverse) const;

 private:
  BlindRsaPublicKey(Pkey key, Bignum modulus, Bignum exponent);
  Pkey key_;
  Bignum modulus_, exponent_;
  size_t modulus_bytes_;
};

class BlindRsaPrivateKey {
 public:
  static Result<BlindRsaPrivateKey> generate();  // 2,048 bits; about 0.1 s
  static Result<BlindRsaPrivateKey> from_pem(std::string_view pem);
  // For the vectors of RFC 9474, whose key comes as numbers.
  static Result<BlindRsaPrivateKey> from_numbers(ByteView n, ByteView e, ByteView d, ByteView p, ByteView q);
  SecretBytes pem() const;  // PKCS #8, unencrypted
  const BlindRsaPublicKey& public_key() const { return public_key_; }
  // Checked against the public key before it leaves, so that a fault in the arithmetic gives nothing away. kBadRequest
  // when the message is no number below the modulus. Cost: about 0.7 ms.
  Result<Bytes> sign(ByteView blinded_message) const;

 private:
  BlindRsaPrivateKey(Pkey key, BlindRsaPublicKey public_key)
      : key_(std::move(key)), public_key_(std::move(public_key)) {}
  static Result<BlindRsaPrivateKey> from_key(Pkey key);
  Pkey key_;
  BlindRsaPublicKey public_key_;
};

// EMSA-PSS-ENCODE of RFC 8017 with SHA-384 and MGF1-SHA-384, over `bits` - 1 bits.
Bytes emsa_pss_encode(ByteView message, ByteView salt, size_t modulus_bits);

}  // namespace tie::tokens
