// One HTTP/1.1 request and one reply, as far as the operator's face of this daemon needs them: a request line, headers,
// a body of known length; JSON both ways. No chunks, no continuation lines, no keep-alive. Pure functions over bytes;
// any thread. Untrusted input: everything; limits below. Source: RFC 9112.
#pragma once
#include <optional>
#include <string>

#include "base/bytes.h"

namespace tie::wsd {

constexpr size_t kMaxHttpHeadBytes = 4096;
constexpr size_t kMaxHttpBodyBytes = 4096;

struct HttpRequest {
  std::string method, path, body;
};

struct HttpReply {
  int status = 200;
  std::string json;
};

// What has been read so far: a whole request, nullopt while more must come, or kBadRequest. More than one request's
// bytes are an error too.
Result<std::optional<HttpRequest>> parse_http(std::string_view bytes);
std::string render(const HttpReply& reply);

}  // namespace tie::wsd
