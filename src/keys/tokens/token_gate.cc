#include "keys/tokens/token_gate.h"

#include <sys/stat.h>

#include "os/fd.h"

namespace tie::tokens {
namespace {

std::unexpected<Error> refused() {
  return fail(Code::kUnauthenticated, "this token is not accepted");
}

}  // namespace

Result<TokenGate> TokenGate::open(const std::string& folder) {
  struct stat st{};
  if (::stat((folder + "/issuer").c_str(), &st) != 0) return fail(Code::kNotFound, "no token issuer: tokens are off");
  TIE_TRY(Bytes text, os::read_file(folder + "/issuer", kMaxIssuerFileBytes));
  TIE_TRY(Bytes context, os::read_file(folder + "/context", kContextBytes));
  TIE_TRY(IssuerFile issuer, parse_issuer_file(as_text(text)));
  if (context.size() != kContextBytes) return fail(Code::kCorrupt, "the node's token context has not its size");
  return TokenGate(std::move(issuer), std::move(context));
}

TokenGate::TokenGate(IssuerFile issuer, Bytes context)
    : issuer_(std::move(issuer)),
      challenge_(encode(TokenChallenge{issuer_.name, std::move(context), ""})),
      challenge_digest_(crypto::sha256(challenge_)) {}

Result<GoodToken> TokenGate::judge(ByteView token, int64_t now_s) const {
  auto decoded = decode_token(token);
  if (!decoded) return refused();
  // Some key is always used, so that the time tells no refusal from another.
  const IssuerKey* key = nullptr;
  for (const IssuerKey& candidate : issuer_.keys)
    if (equal_constant_time(candidate.id, decoded->key_id)) key = &candidate;
  const IssuerKey& tried = key != nullptr ? *key : issuer_.keys.front();
  GoodToken out{tried.id, token_input(*decoded), tried.not_after_s};
  const bool signed_by_it = tried.key.verify(out.input, decoded->authenticator).has_value();
  const bool ours = equal_constant_time(decoded->challenge_digest, challenge_digest_);
  if (key == nullptr || !signed_by_it || !ours || !tried.counts_at(now_s)) return refused();
  return out;
}

}  // namespace tie::tokens
