// X25519 Diffie-Hellman. Constant time inside libcrypto. Pure functions; any thread. Source: RFC 7748.
#pragma once
#include "base/secret_bytes.h"

namespace tie::crypto {

constexpr size_t kX25519Bytes = 32;

Result<Bytes> x25519_public(ByteView private_key);
// `own_public` is x25519_public(private_key): who asks has it, and libcrypto would compute it once more (a third of a
// KEM operation). kBadRequest for wrong lengths and for an all-zero shared secret (a low-order point).
Result<SecretBytes> x25519_shared(ByteView private_key, ByteView own_public, ByteView public_key);

}  // namespace tie::crypto
