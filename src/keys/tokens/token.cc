#include "keys/tokens/token.h"

#include <algorithm>

#include "base/byte_reader.h"
#include "base/random.h"

namespace tie::tokens {
namespace {

void append_u16(Bytes& out, size_t value) {
  out.push_back(static_cast<uint8_t>(value >> 8));
  out.push_back(static_cast<uint8_t>(value));
}

crypto::Digest digest_of(ByteView bytes) {
  crypto::Digest out{};
  if (bytes.size() == out.size()) std::copy(bytes.begin(), bytes.end(), out.begin());
  return out;
}

}  // namespace

Bytes encode(const TokenChallenge& challenge) {
  tie_check(!challenge.issuer_name.empty() && challenge.issuer_name.size() <= kMaxNameBytes &&
                challenge.origin_info.size() <= kMaxNameBytes &&
                (challenge.redemption_context.empty() || challenge.redemption_context.size() == kContextBytes),
            "a token challenge has fields of their sizes");
  Bytes out;
  append_u16(out, kTokenType);
  append_u16(out, challenge.issuer_name.size());
  append(out, challenge.issuer_name);
  out.push_back(static_cast<uint8_t>(challenge.redemption_context.size()));
  append(out, challenge.redemption_context);
  append_u16(out, challenge.origin_info.size());
  append(out, challenge.origin_info);
  return out;
}

Result<TokenChallenge> decode_challenge(ByteView bytes) {
  ByteReader in(bytes);
  TokenChallenge out;
  const size_t type = in.number(2);
  out.issuer_name = to_string(in.sized(2));
  const ByteView context = in.sized(1);
  out.redemption_context.assign(context.begin(), context.end());
  out.origin_info = to_string(in.sized(2));
  const bool sizes = !out.issuer_name.empty() && out.issuer_name.size() <= kMaxNameBytes &&
                     out.origin_info.size() <= kMaxNameBytes && (context.empty() || context.size() == kContextBytes);
  if (!in.done() || type != kTokenType || !sizes)
    return fail(Code::kBadRequest, "not a challenge for tokens of type 2");
  return out;
}

Bytes token_input(const Token& token) {
  Bytes out;
  append_u16(out, kTokenType);
  append(out, ByteView(token.nonce));
  append(out, ByteView(token.challenge_digest));
  append(out, ByteView(token.key_id));
  return out;
}

Bytes encode(const Token& token) {
  tie_check(token.authenticator.size() == kModulusBytes, "a token's authenticator has its size");
  Bytes out = token_input(token);
  append(out, token.authenticator);
  return out;
}

Result<Token> decode_token(ByteView bytes) {
  if (bytes.size() != kTokenBytes || bytes[0] != 0 || bytes[1] != kTokenType)
    return fail(Code::kBadRequest, "not a token of type 2");
  ByteReader in(bytes.subspan(2));
  Token out;
  for (crypto::Digest* field : {&out.nonce, &out.challenge_digest, &out.key_id}) *field = digest_of(in.take(32));
  const ByteView authenticator = in.take(kModulusBytes);
  out.authenticator.assign(authenticator.begin(), authenticator.end());
  return out;
}

Bytes encode(const TokenRequest& request) {
  Bytes out;
  append_u16(out, kTokenType);
  out.push_back(request.truncated_key_id);
  append(out, request.blinded_message);
  return out;
}

Result<TokenRequest> decode_request(ByteView bytes) {
  ByteReader in(bytes);
  const size_t type = in.number(2);
  if (in.ok() && type != kTokenType) return fail(Code::kUnsupportedFeature, "only tokens of type 2 are issued here");
  TokenRequest out;
  out.truncated_key_id = static_cast<uint8_t>(in.number(1));
  const ByteView message = in.take(kModulusBytes);
  if (!in.done()) return fail(Code::kBadRequest, "not a token request of type 2");
  out.blinded_message.assign(message.begin(), message.end());
  return out;
}

PendingToken::PendingToken(Token token, Blinded blinded)
    : token_(std::move(token)),
      request_(encode(TokenRequest{token_.key_id.back(), std::move(blinded.message)})),
      inverse_(std::move(blinded.inverse)) {}

Result<PendingToken> PendingToken::begin(const BlindRsaPublicKey& key, ByteView challenge) {
  Token token{.challenge_digest = crypto::sha256(challenge), .key_id = key.key_id()};
  random_bytes(token.nonce);
  TIE_TRY(Blinded blinded, key.blind(token_input(token)));
  return PendingToken(std::move(token), std::move(blinded));
}

Result<PendingToken> PendingToken::begin_with(const BlindRsaPublicKey& key, ByteView challenge, ByteView nonce,
                                              ByteView salt, ByteView blind) {
  Token token{.nonce = digest_of(nonce), .challenge_digest = crypto::sha256(challenge), .key_id = key.key_id()};
  TIE_TRY(Blinded blinded, key.blind_with(token_input(token), salt, blind));
  return PendingToken(std::move(token), std::move(blinded));
}

Result<Bytes> PendingToken::finish(const BlindRsaPublicKey& key, ByteView response) const {
  Token token = token_;
  TIE_TRY(token.authenticator, key.finalize(token_input(token), response, inverse_.view()));
  return encode(token);
}

}  // namespace tie::tokens
