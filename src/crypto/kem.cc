#include "crypto/kem.h"

#include <algorithm>

#include "base/random.h"
#include "crypto/hkdf.h"
#include "crypto/sha256.h"
#include "crypto/x25519.h"
#include "crypto/xwing.h"

namespace tie::crypto {
namespace {

Bytes kem_suite_id(KemId id) {
  Bytes suite = to_bytes("KEM");
  suite.push_back(static_cast<uint8_t>(static_cast<uint16_t>(id) >> 8));
  suite.push_back(static_cast<uint8_t>(id));
  return suite;
}

constexpr uint8_t kSecretLength[2] = {0, 32};

SecretBytes labeled_extract(ByteView suite, std::string_view label, ByteView ikm) {
  return hkdf_extract({}, {as_bytes("HPKE-v1"), suite, as_bytes(label), ikm});
}

Result<SecretBytes> labeled_expand32(ByteView suite, ByteView prk, std::string_view label, ByteView info) {
  return hkdf_expand(prk, {ByteView(kSecretLength), as_bytes("HPKE-v1"), suite, as_bytes(label), info}, 32);
}

// ExtractAndExpand of RFC 9180 section 4.1.
Result<SecretBytes> dh_secret(ByteView dh, ByteView enc, ByteView public_key) {
  const Bytes suite = kem_suite_id(KemId::kX25519HkdfSha256);
  const SecretBytes prk = labeled_extract(suite, "eae_prk", dh);
  Bytes kem_context(enc.begin(), enc.end());
  append(kem_context, public_key);
  return labeled_expand32(suite, prk.view(), "shared_secret", kem_context);
}

Result<Encapsulation> dh_encapsulate(ByteView public_key, ByteView ephemeral) {
  if (public_key.size() != kX25519Bytes) return fail(Code::kBadRequest, "an X25519 public key has 32 bytes");
  Encapsulation out;
  TIE_TRY(out.enc, x25519_public(ephemeral));
  TIE_TRY(const SecretBytes dh, x25519_shared(ephemeral, out.enc, public_key));
  TIE_TRY(out.shared_secret, dh_secret(dh.view(), out.enc, public_key));
  return out;
}

// expanded: the private key and its public key.
Result<SecretBytes> dh_decapsulate(ByteView expanded, ByteView enc) {
  if (expanded.size() != 2 * kX25519Bytes) return fail(Code::kBadRequest, "an expanded X25519 key has 64 bytes");
  if (enc.size() != kX25519Bytes) return fail(Code::kBadRequest, "an X25519 encapsulated key has 32 bytes");
  const ByteView public_key = expanded.last(kX25519Bytes);
  TIE_TRY(const SecretBytes dh, x25519_shared(expanded.first(kX25519Bytes), public_key, enc));
  return dh_secret(dh.view(), enc, public_key);
}

Result<void> dh_expand(ByteView private_key, std::span<uint8_t> expanded) {
  TIE_TRY(const Bytes public_key, x25519_public(private_key));
  std::ranges::copy(private_key, expanded.begin());
  std::ranges::copy(public_key, expanded.subspan(kX25519Bytes).begin());
  return {};
}

}  // namespace

Result<KemSizes> kem_sizes(KemId id) {
  switch (id) {
    case KemId::kX25519HkdfSha256:
      return KemSizes{32, 32, 32, 32, 32};
    case KemId::kXWing:
      return KemSizes{xwing::kPrivateBytes, xwing::kPublicBytes, xwing::kEncBytes, xwing::kSharedBytes,
                      xwing::kRandomnessBytes};
  }
  return fail(Code::kUnsupportedFeature, "unknown key encapsulation");
}

Result<KemId> kem_id_from(uint32_t number) {
  if (number == static_cast<uint16_t>(KemId::kX25519HkdfSha256)) return KemId::kX25519HkdfSha256;
  if (number == static_cast<uint16_t>(KemId::kXWing)) return KemId::kXWing;
  return fail(Code::kUnsupportedFeature, "unknown key encapsulation " + std::to_string(number));
}

Result<KemKeyPair> kem_generate(KemId id) {
  TIE_TRY(KemSizes sizes, kem_sizes(id));
  return kem_from_private(id, random_secret(sizes.private_key).view());
}

Result<KemKeyPair> kem_from_private(KemId id, ByteView private_key) {
  KemKeyPair out;
  out.id = id;
  TIE_TRY(out.public_key, id == KemId::kXWing ? xwing::public_key(private_key) : x25519_public(private_key));
  out.private_key = SecretBytes::copy_of(private_key);
  return out;
}

Result<KemKeyPair> kem_derive(KemId id, ByteView ikm) {
  TIE_TRY(KemSizes sizes, kem_sizes(id));
  if (ikm.size() < sizes.private_key) return fail(Code::kBadRequest, "too little key material to derive a key from");
  const Bytes suite = kem_suite_id(id);
  if (id == KemId::kXWing) {  // the one-stage labeled derive of the post-quantum draft
    static constexpr uint8_t kLabelLength[2] = {0, 13};
    const SecretBytes seed = shake256(
        {ikm, as_bytes("HPKE-v1"), suite, ByteView(kLabelLength), as_bytes("DeriveKeyPair"), ByteView(kSecretLength)},
        32);
    return kem_from_private(id, seed.view());
  }
  const SecretBytes prk = labeled_extract(suite, "dkp_prk", ikm);
  TIE_TRY(const SecretBytes private_key, labeled_expand32(suite, prk.view(), "sk", {}));
  return kem_from_private(id, private_key.view());
}

Result<Encapsulation> kem_encapsulate(KemId id, ByteView public_key) {
  TIE_TRY(KemSizes sizes, kem_sizes(id));
  return kem_encapsulate_with(id, public_key, random_secret(sizes.randomness).view());
}

Result<Encapsulation> kem_encapsulate_with(KemId id, ByteView public_key, ByteView randomness) {
  return id == KemId::kXWing ? xwing::encapsulate(public_key, randomness) : dh_encapsulate(public_key, randomness);
}

Result<size_t> kem_expanded_bytes(KemId id) {
  switch (id) {
    case KemId::kX25519HkdfSha256:
      return 2 * kX25519Bytes;
    case KemId::kXWing:
      return xwing::kExpandedBytes;
  }
  return fail(Code::kUnsupportedFeature, "unknown key encapsulation");
}

Result<void> kem_expand(KemId id, ByteView private_key, std::span<uint8_t> expanded) {
  TIE_TRY(size_t size, kem_expanded_bytes(id));
  tie_check(expanded.size() == size, "an expanded key has its one size");
  return id == KemId::kXWing ? xwing::expand(private_key, expanded) : dh_expand(private_key, expanded);
}

Result<SecretBytes> kem_decapsulate_expanded(KemId id, ByteView expanded, ByteView enc) {
  return id == KemId::kXWing ? xwing::decapsulate(expanded, enc) : dh_decapsulate(expanded, enc);
}

Result<SecretBytes> kem_decapsulate(KemId id, ByteView private_key, ByteView enc) {
  TIE_TRY(size_t size, kem_expanded_bytes(id));
  SecretBytes expanded(size);
  TIE_CHECK_OK(kem_expand(id, private_key, expanded.span()));
  return kem_decapsulate_expanded(id, expanded.view(), enc);
}

}  // namespace tie::crypto
