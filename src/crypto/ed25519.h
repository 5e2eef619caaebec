// Ed25519 signatures (boot-time evidence keys, asset manifests). Pure functions; any thread. Source: RFC 8032.
#pragma once
#include "base/secret_bytes.h"

namespace tie::crypto {

constexpr size_t kEd25519SeedBytes = 32;
constexpr size_t kEd25519PublicBytes = 32;
constexpr size_t kEd25519SignatureBytes = 64;

struct Ed25519KeyPair {
  SecretBytes seed;
  Bytes public_key;
};

Ed25519KeyPair ed25519_generate();
Result<Ed25519KeyPair> ed25519_from_seed(ByteView seed);
Result<Bytes> ed25519_sign(ByteView seed, ByteView message);
// kCorrupt when the signature is not the key's over the message; kBadRequest for wrong lengths.
Result<void> ed25519_verify(ByteView public_key, ByteView message, ByteView signature);

}  // namespace tie::crypto
