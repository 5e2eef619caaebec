// Key encapsulation: DHKEM(X25519, HKDF-SHA256) and X-Wing (ML-KEM-768 + X25519). Pure functions; any thread.
// Private keys and shared secrets are secrets; a changed X-Wing ciphertext gives another secret (implicit rejection),
// so the failure shows where the secret is used. Private X-Wing keys are the 32-byte seed. Needs a Rust library that
// carries edge_kem. Source: RFC 9180 section 4.1; draft-connolly-cfrg-xwing-kem; FIPS 203; draft-ietf-hpke-pq for
// derivation.
#pragma once
#include <vector>

#include "base/secret_bytes.h"

namespace tie::crypto {

enum class KemId : uint16_t { kX25519HkdfSha256 = 0x0020, kXWing = 0x647a };  // IANA HPKE KEM identifiers

struct KemSizes {
  size_t private_key, public_key, encapsulated, shared_secret;
  size_t randomness;  // what kem_encapsulate_with consumes
};
Result<KemSizes> kem_sizes(KemId id);  // kUnsupportedFeature for an unknown id
Result<KemId> kem_id_from(uint32_t number);

struct KemKeyPair {
  KemId id = KemId::kXWing;
  SecretBytes private_key;
  Bytes public_key;
};
Result<KemKeyPair> kem_generate(KemId id);
Result<KemKeyPair> kem_from_private(KemId id, ByteView private_key);
// RFC 9180 DeriveKeyPair; ikm of at least private_key bytes.
Result<KemKeyPair> kem_derive(KemId id, ByteView ikm);

struct Encapsulation {
  Bytes enc;
  SecretBytes shared_secret;  // 32 bytes
};
// kBadRequest for a public key of the wrong length, that fails ML-KEM's modulus check, or of low order.
Result<Encapsulation> kem_encapsulate(KemId id, ByteView public_key);
// With the caller's randomness (X25519: the ephemeral private key; X-Wing: 32 bytes for ML-KEM, then 32 for X25519):
// for test vectors.
Result<Encapsulation> kem_encapsulate_with(KemId id, ByteView public_key, ByteView randomness);
// A private key in the form that decapsulation works with, for keys that are used often: made once, it saves X-Wing
// half of each decapsulation. As secret as the private key.
Result<size_t> kem_expanded_bytes(KemId id);
Result<void> kem_expand(KemId id, ByteView private_key, std::span<uint8_t> expanded);  // of kem_expanded_bytes
Result<SecretBytes> kem_decapsulate_expanded(KemId id, ByteView expanded, ByteView enc);
// kBadRequest for wrong lengths or a low-order point.
Result<SecretBytes> kem_decapsulate(KemId id, ByteView private_key, ByteView enc);

}  // namespace tie::crypto
