#include "crypto/ed25519.h"

#include "base/random.h"
#include "crypto/raw_keys.h"

namespace tie::crypto {

Ed25519KeyPair ed25519_generate() {
  auto pair = ed25519_from_seed(random_secret(kEd25519SeedBytes).view());
  tie_check(pair.has_value(), "a random seed is an Ed25519 key");
  return std::move(*pair);
}

Result<Ed25519KeyPair> ed25519_from_seed(ByteView seed) {
  if (seed.size() != kEd25519SeedBytes) return fail(Code::kBadRequest, "an Ed25519 seed has 32 bytes");
  Pkey key = raw_private(EVP_PKEY_ED25519, seed);
  Ed25519KeyPair out{SecretBytes::copy_of(seed), Bytes(kEd25519PublicBytes)};
  size_t length = out.public_key.size();
  if (!key || EVP_PKEY_get_raw_public_key(key.get(), out.public_key.data(), &length) != 1)
    return fail(Code::kInternal, "Ed25519 is not available");
  return out;
}

Result<Bytes> ed25519_sign(ByteView seed, ByteView message) {
  if (seed.size() != kEd25519SeedBytes) return fail(Code::kBadRequest, "an Ed25519 seed has 32 bytes");
  Pkey key = raw_private(EVP_PKEY_ED25519, seed);
  MdContext context(EVP_MD_CTX_new());
  Bytes signature(kEd25519SignatureBytes);
  size_t length = signature.size();
  if (!key || !context || EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()) != 1 ||
      EVP_DigestSign(context.get(), signature.data(), &length, message.data(), message.size()) != 1)
    return fail(Code::kInternal, "signing failed");
  return signature;
}

Result<void> ed25519_verify(ByteView public_key, ByteView message, ByteView signature) {
  if (public_key.size() != kEd25519PublicBytes) return fail(Code::kBadRequest, "an Ed25519 public key has 32 bytes");
  if (signature.size() != kEd25519SignatureBytes) return fail(Code::kBadRequest, "an Ed25519 signature has 64 bytes");
  Pkey key = raw_public(EVP_PKEY_ED25519, public_key);
  MdContext context(EVP_MD_CTX_new());
  if (!key || !context || EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, key.get()) != 1)
    return fail(Code::kBadRequest, "not an Ed25519 public key");
  if (EVP_DigestVerify(context.get(), signature.data(), signature.size(), message.data(), message.size()) != 1)
    return fail(Code::kCorrupt, "the signature does not match");
  return {};
}

}  // namespace tie::crypto
