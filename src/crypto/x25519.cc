#include "crypto/x25519.h"

#include "crypto/raw_keys.h"

namespace tie::crypto {

Result<Bytes> x25519_public(ByteView private_key) {
  if (private_key.size() != kX25519Bytes) return fail(Code::kBadRequest, "an X25519 private key has 32 bytes");
  Pkey key = raw_private(EVP_PKEY_X25519, private_key);
  Bytes out(kX25519Bytes);
  size_t length = out.size();
  if (!key || EVP_PKEY_get_raw_public_key(key.get(), out.data(), &length) != 1)
    return fail(Code::kInternal, "X25519 is not available");
  return out;
}

Result<SecretBytes> x25519_shared(ByteView private_key, ByteView public_key) {
  if (private_key.size() != kX25519Bytes || public_key.size() != kX25519Bytes)
    return fail(Code::kBadRequest, "X25519 keys have 32 bytes");
  Pkey mine = raw_private(EVP_PKEY_X25519, private_key);
  Pkey theirs = raw_public(EVP_PKEY_X25519, public_key);
  PkeyContext context(mine ? EVP_PKEY_CTX_new(mine.get(), nullptr) : nullptr);
  if (!theirs || !context || EVP_PKEY_derive_init(context.get()) != 1 ||
      EVP_PKEY_derive_set_peer(context.get(), theirs.get()) != 1)
    return fail(Code::kInternal, "X25519 is not available");
  SecretBytes shared(kX25519Bytes);
  size_t length = shared.size();
  // libcrypto refuses the all-zero result itself; checked again so that the rule does not hang on its version.
  static constexpr uint8_t kZero[kX25519Bytes] = {};
  if (EVP_PKEY_derive(context.get(), shared.data(), &length) != 1 ||
      equal_constant_time(shared.view(), ByteView(kZero)))
    return fail(Code::kBadRequest, "the public key is of low order");
  return shared;
}

}  // namespace tie::crypto
