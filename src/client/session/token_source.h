// Where a session gets one-time tokens from; client/token_wallet is the one of the product. Any thread.
#pragma once
#include "base/bytes.h"
#include "base/result.h"

namespace tie::client {

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  // A token that was never given before, for a node with this TokenChallenge. May ask the issuer and wait for it.
  virtual Result<Bytes> take(ByteView challenge) = 0;
};

}  // namespace tie::client
