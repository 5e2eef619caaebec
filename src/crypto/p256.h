// ECDSA over P-256 with SHA-256, verification only: TPMs sign with it. Pure function over libcrypto; any thread.
// Source: FIPS 186-5.
#pragma once
#include "base/bytes.h"

namespace tie::crypto {

constexpr size_t kP256PointBytes = 64;      // x || y
constexpr size_t kP256SignatureBytes = 64;  // r || s

// kBadRequest for a point that is none, kCorrupt when the signature does not match.
Result<void> p256_verify(ByteView point, ByteView message, ByteView signature);

}  // namespace tie::crypto
