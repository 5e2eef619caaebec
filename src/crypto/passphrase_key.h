// A key from a passphrase that a person can remember: scrypt, slow and memory-hard on purpose. Pure function; any
// thread. Source: RFC 7914. Cost at the default: about 0.4 s and 128 MB.
#pragma once
#include "base/secret_bytes.h"

namespace tie::crypto {

struct PassphraseCost {
  uint32_t log2_n = 17;
  uint32_t r = 8;
  uint32_t p = 1;
};

// kOutOfRange for a cost above 1 GiB of memory, for p above 16 or for log2_n outside [1, 24]: the cost may come from a
// hostile file.
Result<SecretBytes> key_from_passphrase(ByteView passphrase, ByteView salt, const PassphraseCost& cost, size_t length);

}  // namespace tie::crypto
