// The issuer's directory as HTTP serves it (JSON of RFC 9578, section 4), to and from an IssuerFile. "token-key" is
// base64url with padding; "not-after" is an addition of this product, which others ignore. Pure functions; untrusted
// input. Its own target, since it brings the JSON library.
#pragma once
#include "keys/tokens/issuer_file.h"

namespace tie::tokens {

constexpr std::string_view kDirectoryPath = "/.well-known/private-token-issuer-directory";
constexpr std::string_view kDirectoryType = "application/private-token-issuer-directory";
constexpr std::string_view kRequestType = "application/private-token-request";
constexpr std::string_view kResponseType = "application/private-token-response";
constexpr size_t kMaxDirectoryBytes = 64 << 10;

struct Directory {
  std::string request_uri;  // absolute, or relative to the directory
  std::vector<IssuerKey> keys;
};

std::string render_directory(const Directory& directory);
// Keys of other types are passed over. kCorrupt when it is no directory; kNotFound when it has no key of type 2.
Result<Directory> parse_directory(std::string_view json);

std::string base64url(ByteView bytes);
Result<Bytes> from_base64url(std::string_view text);  // with or without padding

}  // namespace tie::tokens
