#include "crypto/p256.h"

#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/params.h>

#include "crypto/raw_keys.h"

namespace tie::crypto {
namespace {

Pkey point_key(ByteView point) {
  Bytes encoded = {4};  // uncompressed
  append(encoded, point);
  char group[] = "prime256v1";
  OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_PKEY_PARAM_GROUP_NAME, group, 0),
                         OSSL_PARAM_construct_octet_string(OSSL_PKEY_PARAM_PUB_KEY, encoded.data(), encoded.size()),
                         OSSL_PARAM_construct_end()};
  EVP_PKEY_CTX* context = EVP_PKEY_CTX_new_from_name(nullptr, "EC", nullptr);
  EVP_PKEY* key = nullptr;
  if (context != nullptr && EVP_PKEY_fromdata_init(context) == 1)
    (void)EVP_PKEY_fromdata(context, &key, EVP_PKEY_PUBLIC_KEY, params);
  EVP_PKEY_CTX_free(context);
  return Pkey(key);
}

// libcrypto takes signatures in DER.
Bytes der_of(ByteView signature) {
  ECDSA_SIG* pair = ECDSA_SIG_new();
  BIGNUM* r = BN_bin2bn(signature.data(), 32, nullptr);
  BIGNUM* s = BN_bin2bn(signature.data() + 32, 32, nullptr);
  tie_check(pair != nullptr && r != nullptr && s != nullptr && ECDSA_SIG_set0(pair, r, s) == 1, "a pair can be made");
  uint8_t* bytes = nullptr;
  const int size = i2d_ECDSA_SIG(pair, &bytes);
  Bytes out;
  if (size > 0) out.assign(bytes, bytes + size);
  OPENSSL_free(bytes);
  ECDSA_SIG_free(pair);
  return out;
}

}  // namespace

Result<void> p256_verify(ByteView point, ByteView message, ByteView signature) {
  if (point.size() != kP256PointBytes || signature.size() != kP256SignatureBytes)
    return fail(Code::kBadRequest, "a P-256 point and a signature have 64 bytes each");
  const Pkey key = point_key(point);
  MdContext context(EVP_MD_CTX_new());
  if (!key || !context || EVP_DigestVerifyInit(context.get(), nullptr, EVP_sha256(), nullptr, key.get()) != 1)
    return fail(Code::kBadRequest, "not a point of P-256");
  const Bytes der = der_of(signature);
  if (EVP_DigestVerify(context.get(), der.data(), der.size(), message.data(), message.size()) != 1)
    return fail(Code::kCorrupt, "the signature does not match");
  return {};
}

}  // namespace tie::crypto
