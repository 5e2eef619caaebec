// Owned libcrypto keys for the two curve algorithms. Private to this folder.
#pragma once
#include <openssl/evp.h>

#include <memory>

#include "base/bytes.h"

namespace tie::crypto {

struct PkeyFree {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
struct PkeyContextFree {
  void operator()(EVP_PKEY_CTX* context) const { EVP_PKEY_CTX_free(context); }
};
struct MdContextFree {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
using Pkey = std::unique_ptr<EVP_PKEY, PkeyFree>;
using PkeyContext = std::unique_ptr<EVP_PKEY_CTX, PkeyContextFree>;
using MdContext = std::unique_ptr<EVP_MD_CTX, MdContextFree>;

inline Pkey raw_private(int type, ByteView key) {
  return Pkey(EVP_PKEY_new_raw_private_key(type, nullptr, key.data(), key.size()));
}
inline Pkey raw_public(int type, ByteView key) {
  return Pkey(EVP_PKEY_new_raw_public_key(type, nullptr, key.data(), key.size()));
}

}  // namespace tie::crypto
