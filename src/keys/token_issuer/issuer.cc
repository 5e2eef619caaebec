#include "keys/token_issuer/issuer.h"

#include "keys/tokens/token.h"

namespace tie::issuer {

const SigningKey* Issuer::find(uint8_t truncated_key_id, int64_t now_s) const {
  for (const SigningKey& key : keys_)
    if (key.key.public_key().key_id().back() == truncated_key_id && now_s >= key.not_before_s &&
        now_s < key.not_after_s)
      return &key;
  return nullptr;
}

Answer Issuer::issue(std::string_view api_key, ByteView bytes, int64_t now_ms) {
  const auto request = tokens::decode_request(bytes);
  if (!request) return {request.error().code == Code::kUnsupportedFeature ? 422 : 400, {}, request.error().message};
  const SigningKey* key = find(request->truncated_key_id, now_ms / 1000);
  if (key == nullptr) return {422, {}, "no key of this issuer is meant, or it no longer counts"};
  if (auto allowed = allowance_.take(api_key, now_ms); !allowed)
    return {allowed.error().code == Code::kOverloaded ? 429 : 401, {}, allowed.error().message};
  auto signature = key->key.sign(request->blinded_message);
  if (!signature) return {signature.error().code == Code::kBadRequest ? 422 : 500, {}, signature.error().message};
  return {200, std::move(*signature), {}};
}

}  // namespace tie::issuer
