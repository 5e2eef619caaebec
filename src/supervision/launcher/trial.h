// Whether processes can be confined here at all: a small program is started in a sandbox and must end well. Used before
// a node starts and by `tie doctor`. One thread; cost about 10 ms.
#pragma once
#include "os/sandbox.h"

namespace tie::launcher {

// kNotReady with what went wrong.
Result<void> try_sandbox(os::SandboxLauncher& launcher);

}  // namespace tie::launcher
