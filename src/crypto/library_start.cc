#include "crypto/library_start.h"

#include <openssl/crypto.h>

#include "base/result.h"

namespace tie::crypto {

void start_library_for_one_request() {
  constexpr uint64_t kNothingExtra = OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT |
                                     OPENSSL_INIT_NO_LOAD_CRYPTO_STRINGS | OPENSSL_INIT_NO_ADD_ALL_CIPHERS |
                                     OPENSSL_INIT_NO_ADD_ALL_DIGESTS;
  tie_check(OPENSSL_init_crypto(kNothingExtra, nullptr) == 1, "libcrypto starts");
}

}  // namespace tie::crypto
