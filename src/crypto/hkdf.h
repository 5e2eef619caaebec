// HKDF with SHA-256. Pure functions; any thread. Results are secrets. Source: RFC 5869.
#pragma once
#include <initializer_list>

#include "base/secret_bytes.h"

namespace tie::crypto {

constexpr size_t kHkdfMaxBytes = 255 * 32;

// The pseudo-random key (32 bytes). An empty salt means 32 zero bytes, as the RFC says. `ikm` parts are concatenated.
SecretBytes hkdf_extract(ByteView salt, std::initializer_list<ByteView> ikm);
// kOutOfRange above kHkdfMaxBytes or when prk is shorter than 32 bytes.
Result<SecretBytes> hkdf_expand(ByteView prk, std::initializer_list<ByteView> info, size_t length);
// Extract, then expand.
Result<SecretBytes> hkdf(ByteView salt, ByteView ikm, std::initializer_list<ByteView> info, size_t length);

}  // namespace tie::crypto
