// For tests: an issuer with one key, and tokens of it.
#pragma once
#include "keys/tokens/token_gate.h"

namespace tie::tokens::testing {

struct Issuer {
  BlindRsaPrivateKey key = *BlindRsaPrivateKey::generate();
  IssuerKey public_half(int64_t not_before_s, int64_t not_after_s) const {
    return {*BlindRsaPublicKey::from_spki(key.public_key().spki()), key.public_key().key_id(), not_before_s,
            not_after_s};
  }
  IssuerFile file(int64_t not_before_s, int64_t not_after_s, const std::string& name = "issuer.example") const {
    IssuerFile out{name, {}};
    out.keys.push_back(public_half(not_before_s, not_after_s));
    return out;
  }
  Bytes token(ByteView challenge) const {
    auto pending = PendingToken::begin(key.public_key(), challenge);
    return *pending->finish(key.public_key(), *key.sign(decode_request(pending->request())->blinded_message));
  }
};

}  // namespace tie::tokens::testing
