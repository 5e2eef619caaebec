#include "crypto/xwing.h"

#include "crypto/sha256.h"
#include "crypto/x25519.h"
#include "edge_kem.h"

namespace tie::crypto::xwing {
namespace {

constexpr size_t kMlKemSeed = EDGE_KEM_MLKEM768_SEED_BYTES;
constexpr size_t kMlKemPublic = EDGE_KEM_MLKEM768_PUBLIC_BYTES;
constexpr size_t kMlKemPrivate = EDGE_KEM_MLKEM768_PRIVATE_BYTES;
constexpr size_t kMlKemEnc = EDGE_KEM_MLKEM768_CIPHERTEXT_BYTES;
constexpr size_t kMlKemRandom = EDGE_KEM_MLKEM768_RANDOM_BYTES;
constexpr uint8_t kLabel[6] = {0x5c, 0x2e, 0x2f, 0x2f, 0x5e, 0x5c};  // \.//^\ as the draft writes it

struct Expanded {
  SecretBytes ml_kem_private;
  Bytes ml_kem_public;
  SecretBytes x25519_private;
  Bytes x25519_public;
};

Result<Expanded> expand(ByteView seed) {
  if (seed.size() != kPrivateBytes) return fail(Code::kBadRequest, "an X-Wing private key has 32 bytes");
  const SecretBytes stream = shake256({seed}, kMlKemSeed + kX25519Bytes);
  Expanded out;
  out.ml_kem_private = SecretBytes(kMlKemPrivate);
  out.ml_kem_public.resize(kMlKemPublic);
  if (edge_kem_mlkem768_keypair(stream.data(), out.ml_kem_public.data(), out.ml_kem_private.data()) != EDGE_KEM_OK)
    return fail(Code::kInternal, "ML-KEM key generation failed");
  out.x25519_private = SecretBytes::copy_of(stream.view().subspan(kMlKemSeed));
  TIE_TRY(out.x25519_public, x25519_public(out.x25519_private.view()));
  return out;
}

SecretBytes combine(ByteView ml_kem_secret, ByteView x25519_secret, ByteView x25519_enc, ByteView x25519_key) {
  Digest digest = sha3_256({ml_kem_secret, x25519_secret, x25519_enc, x25519_key, ByteView(kLabel)});
  SecretBytes out = SecretBytes::copy_of(digest);
  secure_zero(digest.data(), digest.size());
  return out;
}

}  // namespace

Result<Bytes> public_key(ByteView seed) {
  TIE_TRY(Expanded keys, expand(seed));
  Bytes out = std::move(keys.ml_kem_public);
  append(out, keys.x25519_public);
  return out;
}

Result<Encapsulation> encapsulate(ByteView public_key, ByteView randomness) {
  if (public_key.size() != kPublicBytes) return fail(Code::kBadRequest, "an X-Wing public key has 1216 bytes");
  if (randomness.size() != kRandomnessBytes)
    return fail(Code::kBadRequest, "X-Wing encapsulation takes 64 random bytes");
  const ByteView x_key = public_key.subspan(kMlKemPublic);
  const ByteView x_private = randomness.subspan(kMlKemRandom);
  Encapsulation out;
  out.enc.resize(kMlKemEnc);
  SecretBytes ml_kem_secret(kSharedBytes);
  if (edge_kem_mlkem768_encapsulate(public_key.data(), randomness.data(), out.enc.data(), ml_kem_secret.data()) !=
      EDGE_KEM_OK)
    return fail(Code::kBadRequest, "not an ML-KEM-768 public key");
  TIE_TRY(const Bytes x_enc, x25519_public(x_private));
  TIE_TRY(const SecretBytes x_secret, x25519_shared(x_private, x_enc, x_key));
  append(out.enc, x_enc);
  out.shared_secret = combine(ml_kem_secret.view(), x_secret.view(), x_enc, x_key);
  return out;
}

Result<SecretBytes> decapsulate(ByteView seed, ByteView enc) {
  if (enc.size() != kEncBytes) return fail(Code::kBadRequest, "an X-Wing encapsulated key has 1120 bytes");
  TIE_TRY(const Expanded keys, expand(seed));
  SecretBytes ml_kem_secret(kSharedBytes);
  if (edge_kem_mlkem768_decapsulate(keys.ml_kem_private.data(), enc.data(), ml_kem_secret.data()) != EDGE_KEM_OK)
    return fail(Code::kInternal, "ML-KEM decapsulation failed");
  const ByteView x_enc = enc.subspan(kMlKemEnc);
  TIE_TRY(const SecretBytes x_secret, x25519_shared(keys.x25519_private.view(), keys.x25519_public, x_enc));
  return combine(ml_kem_secret.view(), x_secret.view(), x_enc, keys.x25519_public);
}

}  // namespace tie::crypto::xwing
