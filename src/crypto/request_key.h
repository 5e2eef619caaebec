// The node's public request key as a client learned it from a verified bundle: what a request is sealed to. Plain data.
#pragma once
#include "crypto/hpke.h"

namespace tie::crypto {

struct RequestKey {
  HpkeSuite suite;
  Bytes key_id;  // kKeyIdBytes: SHA-256 of the canonical KEM claims
  Bytes public_key;
};

}  // namespace tie::crypto
