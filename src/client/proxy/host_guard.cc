#include "client/proxy/host_guard.h"

#include "crypto/sha256.h"

namespace tie::client {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? char(c + 32) : c;
  return out;
}

// Over digests, so that neither content nor length shows in the time it takes.
bool same_secret(std::string_view a, std::string_view b) {
  return equal_constant_time(crypto::sha256(as_bytes(a)), crypto::sha256(as_bytes(b)));
}

}  // namespace

bool HostGuard::is_own_authority(std::string_view authority) const {
  std::string wanted = ":" + std::to_string(port);
  std::string given = lower(authority);
  if (given.size() < wanted.size() || !given.ends_with(wanted)) {
    if (port != 80) return false;
    given += wanted;
  }
  std::string host = given.substr(0, given.size() - wanted.size());
  return host == "localhost" || host == "127.0.0.1" || host == "[::1]" ||
         (!extra_host.empty() && host == lower(extra_host));
}

std::optional<ApiError> HostGuard::refusal(const HttpRequest& request) const {
  std::string host = request.header("Host");
  if (!is_own_authority(host)) {
    return ApiError{Code::kPermissionDenied,
                    "The Host header must name this proxy: localhost:" + std::to_string(port) +
                        " or 127.0.0.1:" + std::to_string(port) + ".",
                    {},
                    "host_not_allowed",
                    403};
  }
  std::string origin = request.header("Origin");
  if (!origin.empty() && !(origin.starts_with("http://") && is_own_authority(std::string_view(origin).substr(7)))) {
    return ApiError{Code::kPermissionDenied,
                    "Requests from web pages of other origins are refused.",
                    {},
                    "origin_not_allowed",
                    403};
  }
  if (api_key.empty() || request.path == "/healthz") return std::nullopt;
  std::string authorization = request.header("Authorization");
  bool bearer = lower(std::string_view(authorization).substr(0, 7)) == "bearer ";
  if (!bearer || !same_secret(std::string_view(authorization).substr(7), api_key)) {
    return ApiError{Code::kUnauthenticated,
                    "Incorrect API key: this proxy was started with --api-key, and the request must carry "
                    "'Authorization: Bearer KEY'.",
                    {},
                    "invalid_api_key",
                    401};
  }
  return std::nullopt;
}

}  // namespace tie::client
