// Key derivations and associated data that both halves of request sealing share. Pure functions; any thread.
// Format: docs/wire-format.md.
#pragma once
#include "crypto/hpke.h"

namespace tie::crypto {

// HPKE info of a request: label || suite id || key id.
Bytes request_info(const HpkeSuite& suite, ByteView key_id);

// Key of a request's chunks: HKDF(DEK, label || aead id || key id || SHA-256(clear parameters)). kBadRequest for wrong
// lengths.
Result<SecretBytes> chunk_key(ByteView dek, AeadId aead, ByteView key_id, ByteView clear_parameters);

// Associated data of chunk `index`: label || index (u64 big-endian) || final flag (one byte, 0 or 1) || header (chunk 0
// of a request only).
Bytes chunk_aad(std::string_view label, uint64_t index, bool final, ByteView header = {});

// Response key and base nonce from the exported response secret, the encapsulated key and the response's own salt.
struct ResponseKeys {
  AeadKey key;
  Bytes base_nonce;
};
Result<ResponseKeys> response_keys(ByteView response_secret, ByteView enc, ByteView salt);

}  // namespace tie::crypto
