#include "os/open_files.h"

#include <sys/resource.h>

namespace tie::os {

uint64_t raise_open_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = limit.rlim_max;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : before;
}

Result<uint64_t> require_open_files(uint64_t needed, const char* what) {
  const uint64_t allowed = raise_open_file_limit();
  if (allowed >= needed) return allowed;
  return fail(Code::kFailedPrecondition, std::string(what) + " needs " + std::to_string(needed) +
                                             " open files, but this session may have " + std::to_string(allowed) +
                                             "; raise its hard limit (`ulimit -Hn`, limits.conf, LimitNOFILE=)");
}

}  // namespace tie::os
