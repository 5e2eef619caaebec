// Who may talk to the proxy: programs of this machine, and no web page. A page that rebinds its own name to 127.0.0.1
// shows itself by its Host header; a page that calls across origins by its Origin. Pure functions. Source:
// ARCHITECTURE.md, "The local proxy".
#pragma once
#include <optional>
#include <string>

#include "client/proxy/http_server.h"
#include "client/proxy/openai_error.h"

namespace tie::client {

struct HostGuard {
  int port = 8123;
  std::string api_key;  // empty: none is asked for
  // Further names under which the proxy may be addressed: the address it was told to listen on.
  std::string extra_host;

  // nullopt: let it in. The error's HTTP status is 403, 421 or 401.
  std::optional<ApiError> refusal(const HttpRequest& request) const;

 private:
  bool is_own_authority(std::string_view authority) const;
};

}  // namespace tie::client
