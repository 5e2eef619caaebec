#include "crypto/hpke.h"

#include "crypto/hkdf.h"

namespace tie::crypto {
namespace {

void append_u16_be(Bytes& out, size_t value) {
  out.push_back(static_cast<uint8_t>(value >> 8));
  out.push_back(static_cast<uint8_t>(value));
}

SecretBytes labeled_extract(ByteView suite, ByteView salt, std::string_view label, ByteView ikm) {
  return hkdf_extract(salt, {as_bytes("HPKE-v1"), suite, as_bytes(label), ikm});
}

Result<SecretBytes> labeled_expand(ByteView suite, ByteView prk, std::string_view label, ByteView info, size_t length) {
  Bytes prefix;
  append_u16_be(prefix, length);
  return hkdf_expand(prk, {prefix, as_bytes("HPKE-v1"), suite, as_bytes(label), info}, length);
}

}  // namespace

Bytes hpke_suite_id(const HpkeSuite& suite) {
  Bytes out = to_bytes("HPKE");
  append_u16_be(out, static_cast<uint16_t>(suite.kem));
  append_u16_be(out, kKdfHkdfSha256);
  append_u16_be(out, static_cast<uint16_t>(suite.aead));
  return out;
}

Result<HpkeSchedule> hpke_key_schedule(const HpkeSuite& suite, ByteView shared_secret, ByteView info) {
  if (shared_secret.size() != 32) return fail(Code::kBadRequest, "an HPKE shared secret has 32 bytes");
  TIE_TRY(size_t key_bytes, aead_key_bytes(suite.aead));
  const Bytes id = hpke_suite_id(suite);
  Bytes context = {0};  // base mode
  append(context, labeled_extract(id, {}, "psk_id_hash", {}).view());
  append(context, labeled_extract(id, {}, "info_hash", info).view());
  const SecretBytes secret = labeled_extract(id, shared_secret, "secret", {});
  HpkeSchedule out;
  TIE_TRY(out.key, labeled_expand(id, secret.view(), "key", context, key_bytes));
  TIE_TRY(out.base_nonce, labeled_expand(id, secret.view(), "base_nonce", context, kAeadNonceBytes));
  TIE_TRY(out.exporter_secret, labeled_expand(id, secret.view(), "exp", context, 32));
  return out;
}

Result<SecretBytes> hpke_export(const HpkeSuite& suite, ByteView exporter_secret, ByteView exporter_context,
                                size_t length) {
  if (length > kHkdfMaxBytes) return fail(Code::kOutOfRange, "HPKE exports at most 8160 bytes");
  return labeled_expand(hpke_suite_id(suite), exporter_secret, "sec", exporter_context, length);
}

Bytes hpke_nonce(ByteView base_nonce, uint64_t sequence) {
  tie_check(base_nonce.size() == kAeadNonceBytes, "a base nonce has 12 bytes");
  Bytes out(base_nonce.begin(), base_nonce.end());
  for (size_t i = 0; i < 8; ++i) out[kAeadNonceBytes - 1 - i] ^= static_cast<uint8_t>(sequence >> (8 * i));
  return out;
}

}  // namespace tie::crypto
