// X-Wing over edge_kem's ML-KEM-768, libcrypto's X25519 and SHA3-256. Private to this folder; callers use kem.h.
// Source: draft-connolly-cfrg-xwing-kem sections 5.2 to 5.5.
#pragma once
#include "crypto/kem.h"

namespace tie::crypto::xwing {

constexpr size_t kPrivateBytes = 32;     // the seed
constexpr size_t kPublicBytes = 1216;    // ML-KEM 1184, X25519 32
constexpr size_t kEncBytes = 1120;       // ML-KEM 1088, X25519 32
constexpr size_t kRandomnessBytes = 64;  // ML-KEM 32, X25519 32
constexpr size_t kSharedBytes = 32;
constexpr size_t kExpandedBytes = 2400 + 32 + 32;  // ML-KEM's private key, X25519's, X25519's public key

Result<Bytes> public_key(ByteView seed);
Result<Encapsulation> encapsulate(ByteView public_key, ByteView randomness);
Result<void> expand(ByteView seed, std::span<uint8_t> expanded);  // of kExpandedBytes
Result<SecretBytes> decapsulate(ByteView expanded, ByteView enc);

}  // namespace tie::crypto::xwing
