// The cache store's connection of one request: opened here, because only cloudboardd sees the caller's transport
// credential, and given on through the helper to the app, which therefore cannot choose whose entries it writes. No
// bytes of a user pass through here. Never waits.
#pragma once
#include <string>

#include "os/fd.h"

namespace tie::request::cloudboard {

// `principal`: 32 bytes, or empty for the anonymous class. An invalid descriptor when there is no store or it takes no
// more connections: the request is served without it.
os::Fd open_store(const std::string& socket, const std::string& principal);

}  // namespace tie::request::cloudboard
