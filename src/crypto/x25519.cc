#include "crypto/x25519.h"

#include <openssl/core_names.h>

#include "crypto/raw_keys.h"

namespace tie::crypto {
namespace {

// A key of both halves as they are: without the public one libcrypto computes it.
Pkey pair_of(ByteView private_key, ByteView public_key) {
  auto octets = [](const char* name, ByteView bytes) {
    return OSSL_PARAM_construct_octet_string(name, const_cast<uint8_t*>(bytes.data()), bytes.size());
  };
  OSSL_PARAM halves[] = {octets(OSSL_PKEY_PARAM_PRIV_KEY, private_key), octets(OSSL_PKEY_PARAM_PUB_KEY, public_key),
                         OSSL_PARAM_construct_end()};
  PkeyContext context(EVP_PKEY_CTX_new_from_name(nullptr, "X25519", nullptr));
  EVP_PKEY* key = nullptr;
  if (context && EVP_PKEY_fromdata_init(context.get()) == 1)
    (void)EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_KEYPAIR, halves);
  return Pkey(key);
}

}  // namespace

Result<Bytes> x25519_public(ByteView private_key) {
  if (private_key.size() != kX25519Bytes) return fail(Code::kBadRequest, "an X25519 private key has 32 bytes");
  Pkey key = raw_private(EVP_PKEY_X25519, private_key);
  Bytes out(kX25519Bytes);
  size_t length = out.size();
  if (!key || EVP_PKEY_get_raw_public_key(key.get(), out.data(), &length) != 1)
    return fail(Code::kInternal, "X25519 is not available");
  return out;
}

Result<SecretBytes> x25519_shared(ByteView private_key, ByteView own_public, ByteView public_key) {
  if (private_key.size() != kX25519Bytes || own_public.size() != kX25519Bytes || public_key.size() != kX25519Bytes)
    return fail(Code::kBadRequest, "X25519 keys have 32 bytes");
  Pkey mine = pair_of(private_key, own_public);
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
