// The issuer's answers: a token request in, a token response out, if the credential may have one. Threads: any.
// Untrusted input: everything. Source: RFC 9578, sections 6.1 and 6.2; statuses: 400 not a request, 401 unknown
// credential, 422 a request that this issuer cannot serve, 429 the credential's share is used up.
#pragma once
#include <string>
#include <vector>

#include "keys/token_issuer/credentials.h"
#include "keys/tokens/issuer_file.h"

namespace tie::issuer {

struct SigningKey {
  tokens::BlindRsaPrivateKey key;
  int64_t not_before_s = 0, not_after_s = 0;
};

struct Answer {
  int status = 200;
  Bytes response;        // of 200
  std::string sentence;  // of anything else
};

class Issuer {
 public:
  Issuer(std::vector<SigningKey> keys, std::vector<Credential> credentials)
      : keys_(std::move(keys)), allowance_(std::move(credentials)) {}
  // `api_key` as the client gave it. Nothing is taken from its share unless a signature is given.
  Answer issue(std::string_view api_key, ByteView request, int64_t now_ms);
  void replace_credentials(std::vector<Credential> credentials) { allowance_.replace(std::move(credentials)); }

 private:
  const SigningKey* find(uint8_t truncated_key_id, int64_t now_s) const;
  const std::vector<SigningKey> keys_;
  Allowance allowance_;
};

}  // namespace tie::issuer
