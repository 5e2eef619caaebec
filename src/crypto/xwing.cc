#include "crypto/xwing.h"

#include <algorithm>

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

static_assert(kExpandedBytes == kMlKemPrivate + 2 * kX25519Bytes);

// ml_kem_public: kMlKemPublic bytes.
Result<void> expand_pair(ByteView seed, std::span<uint8_t> expanded, std::span<uint8_t> ml_kem_public) {
  if (seed.size() != kPrivateBytes) return fail(Code::kBadRequest, "an X-Wing private key has 32 bytes");
  tie_check(expanded.size() == kExpandedBytes, "an expanded X-Wing key has its one size");
  const SecretBytes stream = shake256({seed}, kMlKemSeed + kX25519Bytes);
  if (edge_kem_mlkem768_keypair(stream.data(), ml_kem_public.data(), expanded.data()) != EDGE_KEM_OK)
    return fail(Code::kInternal, "ML-KEM key generation failed");
  const ByteView x_private = stream.view().subspan(kMlKemSeed);
  TIE_TRY(const Bytes x_public, x25519_public(x_private));
  std::ranges::copy(x_private, expanded.subspan(kMlKemPrivate).begin());
  std::ranges::copy(x_public, expanded.subspan(kMlKemPrivate + kX25519Bytes).begin());
  return {};
}

SecretBytes combine(ByteView ml_kem_secret, ByteView x25519_secret, ByteView x25519_enc, ByteView x25519_key) {
  Digest digest = sha3_256({ml_kem_secret, x25519_secret, x25519_enc, x25519_key, ByteView(kLabel)});
  SecretBytes out = SecretBytes::copy_of(digest);
  secure_zero(digest.data(), digest.size());
  return out;
}

}  // namespace

Result<Bytes> public_key(ByteView seed) {
  SecretBytes expanded(kExpandedBytes);
  Bytes out(kMlKemPublic);
  TIE_CHECK_OK(expand_pair(seed, expanded.span(), out));
  append(out, expanded.view().last(kX25519Bytes));
  return out;
}

Result<void> expand(ByteView seed, std::span<uint8_t> expanded) {
  Bytes ml_kem_public(kMlKemPublic);
  return expand_pair(seed, expanded, ml_kem_public);
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

Result<SecretBytes> decapsulate(ByteView expanded, ByteView enc) {
  if (expanded.size() != kExpandedBytes) return fail(Code::kBadRequest, "an expanded X-Wing key has 2464 bytes");
  if (enc.size() != kEncBytes) return fail(Code::kBadRequest, "an X-Wing encapsulated key has 1120 bytes");
  SecretBytes ml_kem_secret(kSharedBytes);
  if (edge_kem_mlkem768_decapsulate(expanded.data(), enc.data(), ml_kem_secret.data()) != EDGE_KEM_OK)
    return fail(Code::kInternal, "ML-KEM decapsulation failed");
  const ByteView x_private = expanded.subspan(kMlKemPrivate, kX25519Bytes), x_public = expanded.last(kX25519Bytes);
  const ByteView x_enc = enc.subspan(kMlKemEnc);
  TIE_TRY(const SecretBytes x_secret, x25519_shared(x_private, x_public, x_enc));
  return combine(ml_kem_secret.view(), x_secret.view(), x_enc, x_public);
}

}  // namespace tie::crypto::xwing
