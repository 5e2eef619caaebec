// The public facts that evidence covers, and their one canonical encoding: equal facts always give equal bytes, so a
// digest names them. Pure functions; any thread. Decoding takes untrusted bytes and accepts exactly what encoding
// produces, nothing else. Source: ARCHITECTURE.md, "Keys of the node"; byte format: docs/wire-format.md, "Claims".
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "crypto/sha256.h"

namespace tie::attestation {

using crypto::Digest;

constexpr size_t kMaxDigestsInClaims = 256;
constexpr size_t kMaxKeyUuidBytes = 64;
constexpr size_t kMaxClaimsBytes = 64 << 10;

// About one request key; its key id is their digest.
struct KemClaims {
  uint32_t suite = 0;  // HPKE KEM id
  Bytes kem_public_key, binding_public_key;
  uint64_t expires_unix_ms = 0;
  std::vector<Digest> model_ids, prompt_digests;
  bool operator==(const KemClaims&) const = default;
};

// By the workload: what runs here, and which binding key is its own.
struct WorkloadClaims {
  Bytes binding_public_key;
  Digest release_id{};
  std::vector<Digest> model_ids, prompt_digests;
  bool operator==(const WorkloadClaims&) const = default;
};

// By the key service: which request key it holds, and to which binding key its answers are sealed.
struct KeyServiceClaims {
  Bytes kem_public_key;
  uint32_t suite = 0;
  Bytes binding_public_key;
  uint64_t expires_unix_ms = 0;
  std::string key_uuid;
  bool operator==(const KeyServiceClaims&) const = default;
};

// Digest lists are sorted and freed of doubles while encoding.
Bytes encode(const KemClaims& claims);
Bytes encode(const WorkloadClaims& claims);
Bytes encode(const KeyServiceClaims& claims);
// kCorrupt for anything that encode() would not produce.
Result<KemClaims> decode_kem_claims(ByteView bytes);
Result<WorkloadClaims> decode_workload_claims(ByteView bytes);
Result<KeyServiceClaims> decode_key_service_claims(ByteView bytes);

// Names a request key: SHA-256 of the encoding. Fresh evidence over the same claims keeps it.
Digest key_id(const KemClaims& claims);

}  // namespace tie::attestation
