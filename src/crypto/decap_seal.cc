#include "crypto/decap_seal.h"

#include "crypto/sha256.h"
#include "crypto/wire_labels.h"

namespace tie::crypto {

Bytes decap_seal_info() {
  Bytes info = to_bytes(kDecapSealInfoLabel);
  append(info, hpke_suite_id(kDecapSealSuite));
  return info;
}

Bytes decap_seal_aad(KemId request_kem, std::string_view key_uuid, ByteView enc) {
  const auto kem = static_cast<uint16_t>(request_kem);
  Bytes aad = {1, static_cast<uint8_t>(kem >> 8), static_cast<uint8_t>(kem)};
  append(aad, key_uuid);
  append(aad, ByteView(sha256(enc)));
  return aad;
}

}  // namespace tie::crypto
