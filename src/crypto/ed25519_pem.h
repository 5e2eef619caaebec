// Ed25519 keys as files that openssl and other tools read: PEM of RFC 8410. Pure functions over libcrypto; any thread.
#pragma once
#include <string>
#include <string_view>

#include "base/secret_bytes.h"

namespace tie::crypto {

std::string ed25519_public_to_pem(ByteView public_key);  // kEd25519PublicBytes long
SecretBytes ed25519_seed_to_pem(ByteView seed);          // kEd25519SeedBytes long
// kCorrupt: no PEM, or a key of another kind.
Result<Bytes> ed25519_public_from_pem(std::string_view pem);
Result<SecretBytes> ed25519_seed_from_pem(std::string_view pem);

}  // namespace tie::crypto
