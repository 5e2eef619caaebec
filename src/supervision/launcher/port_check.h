// Whether an address that the node is to serve on is free, asked before anything starts: a daemon that cannot have it
// would be started again and again. Called by the launcher; no threads.
#pragma once
#include <string>

#include "base/result.h"

namespace tie::launcher {

// `address` is ADDRESS:PORT, `flag` what chooses it. kAlreadyExists when something listens there, kPermissionDenied for
// a port that this user may not have, kIo for an address that is not this machine's; each with what to do. A name that
// does not resolve is left to the daemon.
Result<void> check_port_free(const std::string& address, const std::string& flag);

}  // namespace tie::launcher
