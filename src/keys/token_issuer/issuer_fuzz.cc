// Whatever a client posts: a status of the table, and a signature only for a request that decodes.
#include "keys/token_issuer/issuer.h"
#include "keys/tokens/token.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tie;
  static issuer::Issuer* server = [] {
    std::vector<issuer::SigningKey> keys;
    keys.push_back({*tokens::BlindRsaPrivateKey::generate(), 0, 1000});
    return new issuer::Issuer(std::move(keys), {{"all", crypto::sha256(as_bytes("key")), issuer::kMaxTokensPerHour}});
  }();
  const issuer::Answer answer = server->issue("key", ByteView(data, size), 1);
  tie_check(answer.status != 200 || tokens::decode_request(ByteView(data, size)).has_value(),
            "only requests are signed");
  (void)issuer::parse_credentials(as_text(ByteView(data, size)));
  return 0;
}
