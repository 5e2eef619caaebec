#include "os/lock_file.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

namespace tie::os {

Result<Fd> lock_file(const std::string& path) {
  Fd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return fail_errno("opening " + path, errno);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno != EWOULDBLOCK) return fail_errno("locking " + path, errno);
  return fail(Code::kAlreadyExists, "another process holds " + path);
}

}  // namespace tie::os
