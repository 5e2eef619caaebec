// The descriptors that came with a message of recvmsg(). Threads: any.
#pragma once
#include <sys/socket.h>

#include <vector>

#include "os/fd.h"

namespace tie::os {

// All of them, owned, so that none outlives a message that is refused. Call once for a message.
std::vector<Fd> take_descriptors(msghdr& message);

}  // namespace tie::os
