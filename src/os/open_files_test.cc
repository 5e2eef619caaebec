#include "os/open_files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tie::os {
namespace {

// In a child: a hard limit that was lowered cannot be raised again.
int in_child(int (*run)()) {
  pid_t child = ::fork();
  if (child == 0) ::_exit(run());
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(OpenFiles, TheSoftLimitBecomesTheHardOne) {
  EXPECT_EQ(in_child([] {
              rlimit limit{.rlim_cur = 50, .rlim_max = 200};
              ::setrlimit(RLIMIT_NOFILE, &limit);
              if (raise_open_file_limit() != 200) return 1;
              ::getrlimit(RLIMIT_NOFILE, &limit);
              return limit.rlim_cur == 200 ? 0 : 2;
            }),
            0);
}

TEST(OpenFiles, TooFewAreRefusedInWordsWithBothNumbers) {
  EXPECT_EQ(in_child([] {
              rlimit limit{.rlim_cur = 50, .rlim_max = 200};
              ::setrlimit(RLIMIT_NOFILE, &limit);
              if (!require_open_files(200, "the node")) return 1;
              auto refused = require_open_files(201, "the node");
              if (refused || refused.error().code != Code::kFailedPrecondition) return 2;
              const std::string& said = refused.error().message;
              return said.find("the node needs 201") != std::string::npos &&
                             said.find("may have 200") != std::string::npos
                         ? 0
                         : 3;
            }),
            0);
}

}  // namespace
}  // namespace tie::os
