// The seal between key_protectiond and workload_servicesd: how a decapsulated shared secret travels, closed to everyone
// but the holder of the binding private key the request key was created for. Always X-Wing, so a recorded link stays
// closed later. Pure functions; any thread. Source: ARCHITECTURE.md, "Keys of the node"; byte format:
// docs/wire-format.md.
#pragma once
#include <string_view>

#include "crypto/hpke.h"

namespace tie::crypto {

constexpr HpkeSuite kDecapSealSuite = kSuiteXWing;

// HPKE info: label || suite id.
Bytes decap_seal_info();
// version (1 byte: 1) || KEM id of the request key (u16 big-endian) || key UUID || SHA-256(enc).
Bytes decap_seal_aad(KemId request_kem, std::string_view key_uuid, ByteView enc);

}  // namespace tie::crypto
