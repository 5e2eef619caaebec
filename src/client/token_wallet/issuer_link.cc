#include "client/token_wallet/issuer_link.h"

#include <httplib.h>

#include "base/secret_bytes.h"
#include "keys/tokens/token.h"

namespace tie::client {
namespace {

bool is_this_machine(std::string_view name) {
  const std::string_view host = name.substr(0, name.rfind(':'));
  return host == "localhost" || host.starts_with("127.");
}

// The path of a request URI, which is relative to the directory or begins with the issuer's own address.
Result<std::string> path_of(const std::string& url, const std::string& uri) {
  if (uri.starts_with("/") && !uri.starts_with("//")) return uri;
  if (uri.starts_with(url + "/")) return uri.substr(url.size());
  return fail(Code::kPermissionDenied, "the issuer's directory points to another server");
}

}  // namespace

Result<std::unique_ptr<IssuerLink>> IssuerLink::open(const std::string& url, std::string api_key, int64_t timeout_ms) {
  std::string address = url;
  while (address.ends_with('/')) address.pop_back();
  const bool tls = address.starts_with("https://");
  if (!tls && !address.starts_with("http://"))
    return fail(Code::kBadRequest, "a token issuer is named as https://HOST[:PORT], not '" + url + "'");
  const std::string name = address.substr(tls ? 8 : 7);
  if (!tokens::is_issuer_name(name))
    return fail(Code::kBadRequest, "a token issuer is named as https://HOST[:PORT], not '" + url + "'");
  if (!tls && !is_this_machine(name))
    return fail(Code::kBadRequest, "the API key may go over http to this machine only: name the issuer with https");
  return std::unique_ptr<IssuerLink>(new IssuerLink(address, name, std::move(api_key), timeout_ms));
}

IssuerLink::IssuerLink(std::string url, std::string name, std::string api_key, int64_t timeout_ms)
    : url_(std::move(url)),
      name_(std::move(name)),
      api_key_(std::move(api_key)),
      http_(std::make_unique<httplib::Client>(url_)) {
  const auto limit = std::chrono::milliseconds(timeout_ms);
  http_->set_connection_timeout(limit);
  http_->set_read_timeout(limit);
  http_->set_write_timeout(limit);
  http_->set_keep_alive(true);
  http_->set_follow_location(false);
  http_->set_tcp_nodelay(true);
}

IssuerLink::~IssuerLink() {
  secure_zero(api_key_);
}

void IssuerLink::interrupt() {
  http_->stop();
}

Result<std::string> IssuerLink::send(const char* method, const std::string& path, std::string_view type,
                                     std::string body, size_t max_bytes) {
  httplib::Request request;
  request.method = method;
  request.path = path;
  request.body = std::move(body);
  if (!request.body.empty()) {
    request.set_header("Content-Type", std::string(type));
    request.set_header("Authorization", "Bearer " + api_key_);
  }
  std::string got;
  request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    if (got.size() + size > max_bytes) return false;
    got.append(data, size);
    return true;
  };
  const auto answer = http_->send(request);
  if (!answer) return fail(Code::kNotReady, "the token issuer at " + url_ + " cannot be reached");
  switch (answer->status) {
    case 200:
      return got;
    case 401:
      return fail(Code::kUnauthenticated,
                  "the token issuer at " + url_ +
                      (api_key_.empty() ? " asks for your API key: name its file with --token-key-file"
                                        : " does not know this API key"));
    case 429:
      return fail(Code::kOverloaded, "this API key has had its tokens of the last hour from " + url_);
    default:
      return fail(Code::kInternal,
                  "the token issuer at " + url_ + " answered with status " + std::to_string(answer->status));
  }
}

Result<tokens::Directory> IssuerLink::directory() {
  TIE_TRY(const std::string text, send("GET", std::string(tokens::kDirectoryPath), "", "", tokens::kMaxDirectoryBytes));
  return tokens::parse_directory(text);
}

Result<Bytes> IssuerLink::issue(const tokens::Directory& directory, ByteView request) {
  TIE_TRY(const std::string path, path_of(url_, directory.request_uri));
  TIE_TRY(const std::string response,
          send("POST", path, tokens::kRequestType, to_string(request), tokens::kTokenResponseBytes));
  return to_bytes(response);
}

}  // namespace tie::client
