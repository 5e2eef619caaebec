// The messages of Privacy Pass, token type 2: challenge, token, token request, token response. Encoding and decoding of
// fixed layouts; decoding takes untrusted bytes and accepts exactly what encoding produces. Pure functions; any thread.
// Source: RFC 9577, section 2 (challenge, token); RFC 9578, section 6 (request, response).
#pragma once
#include <string>

#include "keys/tokens/blind_rsa.h"

namespace tie::tokens {

constexpr uint16_t kTokenType = 2;
constexpr size_t kTokenInputBytes = 2 + 3 * 32;                   // type, nonce, challenge digest, key id
constexpr size_t kTokenBytes = kTokenInputBytes + kModulusBytes;  // 354
constexpr size_t kTokenResponseBytes = kModulusBytes;
constexpr size_t kContextBytes = 32;
constexpr size_t kMaxNameBytes = 255;  // of an issuer; of origin info
constexpr size_t kMaxChallengeBytes = 2 + 2 + kMaxNameBytes + 1 + kContextBytes + 2 + kMaxNameBytes;

// What a token is good for: its digest is signed into the token.
struct TokenChallenge {
  std::string issuer_name;
  Bytes redemption_context;  // 32 bytes or none
  std::string origin_info;   // may be empty
  bool operator==(const TokenChallenge&) const = default;
};
Bytes encode(const TokenChallenge& challenge);
Result<TokenChallenge> decode_challenge(ByteView bytes);

struct Token {
  crypto::Digest nonce{}, challenge_digest{}, key_id{};
  Bytes authenticator;  // kModulusBytes
};
// What the authenticator signs.
Bytes token_input(const Token& token);
Bytes encode(const Token& token);
Result<Token> decode_token(ByteView bytes);

struct TokenRequest {
  uint8_t truncated_key_id = 0;  // the key id's last byte
  Bytes blinded_message;
};
Bytes encode(const TokenRequest& request);
// kUnsupportedFeature for another token type, kBadRequest otherwise.
Result<TokenRequest> decode_request(ByteView bytes);

// A client's half of one issuance: ask the issuer with request(), make the token of its response.
class PendingToken {
 public:
  // Draws the nonce.
  static Result<PendingToken> begin(const BlindRsaPublicKey& key, ByteView challenge);
  // For vectors.
  static Result<PendingToken> begin_with(const BlindRsaPublicKey& key, ByteView challenge, ByteView nonce,
                                         ByteView salt, ByteView blind);
  const Bytes& request() const { return request_; }
  Result<Bytes> finish(const BlindRsaPublicKey& key, ByteView response) const;

 private:
  PendingToken(Token token, Blinded blinded);
  Token token_;
  Bytes request_;
  SecretBytes inverse_;
};

}  // namespace tie::tokens
