// Moves bytes between a TLS connection and a plain descriptor until either ends. Private to this folder.
#pragma once
#include <openssl/ssl.h>

#include <memory>

#include "base/result.h"

namespace tie::keys {

struct SslFree {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
using SslPtr = std::unique_ptr<SSL, SslFree>;

Result<void> make_nonblocking(int fd);

// Both descriptors are non-blocking; the handshake is done. Returns when one side closed or failed; what was read
// before is delivered.
void pump(SSL* ssl, int tcp, int plain);

}  // namespace tie::keys
