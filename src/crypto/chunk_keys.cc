#include "crypto/chunk_keys.h"

#include "crypto/hkdf.h"
#include "crypto/sha256.h"
#include "crypto/wire_labels.h"

namespace tie::crypto {
namespace {
Bytes u16_be(uint16_t value) {
  return {static_cast<uint8_t>(value >> 8), static_cast<uint8_t>(value)};
}
}  // namespace

Bytes request_info(const HpkeSuite& suite, ByteView key_id) {
  Bytes info = to_bytes(kRequestInfoLabel);
  append(info, hpke_suite_id(suite));
  append(info, key_id);
  return info;
}

Result<SecretBytes> chunk_key(ByteView dek, AeadId aead, ByteView key_id, ByteView clear_parameters) {
  if (dek.size() != kDekBytes) return fail(Code::kBadRequest, "a data encryption key has 32 bytes");
  if (key_id.size() != kKeyIdBytes) return fail(Code::kBadRequest, "a key id has 32 bytes");
  TIE_TRY(size_t key_bytes, aead_key_bytes(aead));
  const Bytes id = u16_be(static_cast<uint16_t>(aead));
  const Digest parameters = sha256(clear_parameters);
  return hkdf({}, dek, {as_bytes(kChunkKeyLabel), id, key_id, parameters}, key_bytes);
}

Bytes chunk_aad(std::string_view label, uint64_t index, bool final, ByteView header) {
  Bytes aad = to_bytes(label);
  append_u64_be(aad, index);
  aad.push_back(final ? 1 : 0);
  append(aad, header);
  return aad;
}

Result<ResponseKeys> response_keys(ByteView response_secret, ByteView enc, ByteView salt) {
  if (salt.size() != kResponseSaltBytes) return fail(Code::kBadRequest, "a response salt has 32 bytes");
  Bytes whole_salt(enc.begin(), enc.end());
  append(whole_salt, salt);
  const SecretBytes prk = hkdf_extract(whole_salt, {response_secret});
  TIE_TRY(const SecretBytes key, hkdf_expand(prk.view(), {as_bytes(kResponseKeyLabel)}, 32));
  TIE_TRY(const SecretBytes nonce, hkdf_expand(prk.view(), {as_bytes(kResponseNonceLabel)}, kAeadNonceBytes));
  TIE_TRY(AeadKey aead, AeadKey::create(AeadId::kAes256Gcm, key.view()));
  return ResponseKeys{std::move(aead), Bytes(nonce.view().begin(), nonce.view().end())};
}

}  // namespace tie::crypto
