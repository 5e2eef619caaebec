// Whatever the bytes: no crash, and what is accepted encodes to what was read.
#include "keys/tokens/issuer_directory.h"
#include "keys/tokens/token.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tie;
  const ByteView bytes(data, size);
  const auto same = [&](const Bytes& encoded) {
    tie_check(std::equal(encoded.begin(), encoded.end(), bytes.begin(), bytes.end()), "decoding is exact");
  };
  if (auto challenge = tokens::decode_challenge(bytes)) same(tokens::encode(*challenge));
  if (auto token = tokens::decode_token(bytes)) same(tokens::encode(*token));
  if (auto request = tokens::decode_request(bytes)) same(tokens::encode(*request));
  if (auto file = tokens::parse_issuer_file(as_text(bytes)))
    tie_check(tokens::parse_issuer_file(tokens::render(*file)).has_value(), "what is rendered can be read");
  (void)tokens::parse_directory(as_text(bytes));
  return 0;
}
