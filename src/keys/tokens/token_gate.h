// Whether a token opens this node: the node's own challenge, a key of its issuer that counts now, a good signature. Not
// whether it was spent before: that is token_spentd's to say. Used by cb_jobhelper and token_spentd on the same folder
//
//   TOKENS/issuer     the issuer file (issuer_file.h)
//   TOKENS/context    32 random bytes, drawn once for each start of the node and kept as long as its spent-set
//
// The context makes tokens good for one node and one start: no second node takes them, and none that was spent before a
// restart that lost the spent-set is taken after it. Immutable; any thread. Untrusted input: the token.
#pragma once
#include "keys/tokens/issuer_file.h"
#include "keys/tokens/token.h"

namespace tie::tokens {

struct GoodToken {
  crypto::Digest key_id{};
  Bytes input;  // what makes it this token: two signatures over it are one token
  int64_t not_after_s = 0;
};

class TokenGate {
 public:
  // kNotFound when the folder has no issuer file: tokens are off.
  static Result<TokenGate> open(const std::string& folder);
  TokenGate(IssuerFile issuer, Bytes context);

  // The challenge that clients have tokens made for, as TokenChallenge.
  const Bytes& challenge() const { return challenge_; }
  // Names the challenge among those of other starts.
  const crypto::Digest& challenge_digest() const { return challenge_digest_; }
  const IssuerFile& issuer() const { return issuer_; }
  // kUnauthenticated for every refusal. Cost: one RSA verification, whatever the token.
  Result<GoodToken> judge(ByteView token, int64_t now_s) const;

 private:
  IssuerFile issuer_;
  Bytes challenge_;
  crypto::Digest challenge_digest_{};
};

}  // namespace tie::tokens
