// A file that one process at a time holds, beside what that process alone may write. Threads: any.
#pragma once
#include <string>

#include "os/fd.h"

namespace tie::os {

// Makes the file if need be (mode 0600, never through a link) and locks it for as long as the descriptor is open; the
// lock falls with the process. Never waits. kAlreadyExists: another open descriptor holds it, of this process or
// another. kIo and the like: it cannot be opened.
Result<Fd> lock_file(const std::string& path);

}  // namespace tie::os
