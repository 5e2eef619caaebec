// HTTP to a token issuer: its directory, and one token request at a time over a kept connection. https anywhere, http
// to this machine only. One thread at a time. Untrusted input: every answer. Never follows a redirect: the API key goes
// to the issuer that was named, and to nobody else.
#pragma once
#include <memory>
#include <string>

#include "keys/tokens/issuer_directory.h"

namespace httplib {
class Client;
}

namespace tie::client {

class IssuerLink {
 public:
  // "https://HOST[:PORT]" or "http://127.0.0.1:PORT", without a path. kBadRequest.
  static Result<std::unique_ptr<IssuerLink>> open(const std::string& url, std::string api_key, int64_t timeout_ms);
  ~IssuerLink();
  // HOST[:PORT]: the name that challenges must carry.
  const std::string& issuer_name() const { return name_; }
  Result<tokens::Directory> directory();
  // The response to a token request at the directory's URI. kUnauthenticated: the issuer does not know the API key;
  // kOverloaded: its share is used up; kNotReady: the issuer cannot be reached.
  Result<Bytes> issue(const tokens::Directory& directory, ByteView request);
  // From another thread: lets a call in progress end.
  void interrupt();

 private:
  IssuerLink(std::string url, std::string name, std::string api_key, int64_t timeout_ms);
  Result<std::string> send(const char* method, const std::string& path, std::string_view type, std::string body,
                           size_t max_bytes);
  std::string url_, name_, api_key_;
  std::unique_ptr<httplib::Client> http_;
};

}  // namespace tie::client
