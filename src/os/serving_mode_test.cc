#include "os/serving_mode.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <thread>

namespace tie::os {
namespace {

int in_child(const std::function<int()>& body) {
  pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

bool can_map_code() {
  void* at = ::mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return at != MAP_FAILED;
}

bool can_socket() {
  return ::socket(AF_UNIX, SOCK_STREAM, 0) >= 0;
}

bool can_fork() {
  pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  return pid > 0;
}

bool can_exec_in_place() {
  char* const arguments[] = {const_cast<char*>("/bin/true"), nullptr};
  ::execve("/bin/true", arguments, nullptr);
  return false;  // a successful exec does not return; /bin/true then makes the child exit 0
}

bool enter(ServingMode mode) {
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && enter_serving_mode(mode).has_value();
}

TEST(ServingMode, TheControlRunCanDoAllThatIsGivenUp) {
  EXPECT_EQ(0, in_child([] { return can_map_code() && can_socket() && can_fork() ? 0 : 1; }));
  EXPECT_EQ(0, in_child([] {
              can_exec_in_place();
              return 7;
            }));
}

TEST(ServingMode, PerRequestGivesUpSocketsProgramsProcessesAndCode) {
  EXPECT_EQ(0, in_child([] {
              if (!enter(ServingMode::kPerRequest)) return 1;
              if (can_map_code()) return 2;
              if (can_socket() || errno != EPERM) return 3;
              if (can_fork() || errno != EPERM) return 4;
              can_exec_in_place();
              if (errno != EPERM) return 5;
              std::atomic<bool> ran = false;
              std::thread([&] { ran = true; }).join();
              return ran ? 0 : 6;
            }));
}

TEST(ServingMode, ThreadsStartedBeforeAreCoveredToo) {
  EXPECT_EQ(0, in_child([] {
              std::atomic<int> stage = 0;
              std::atomic<bool> could = true;
              std::thread early([&] {
                while (stage == 0) std::this_thread::yield();
                could = can_socket();
              });
              bool entered = enter(ServingMode::kPerRequest);
              stage = 1;
              early.join();
              return entered && !could ? 0 : 1;
            }));
}

TEST(ServingMode, DaemonsKeepSocketsAndLoseExec) {
  EXPECT_EQ(0, in_child([] {
              if (!enter(ServingMode::kDaemon)) return 1;
              if (!can_socket()) return 2;
              if (can_fork()) return 3;
              can_exec_in_place();
              return errno == EPERM ? 0 : 4;
            }));
}

TEST(ServingMode, NeedsNoNewPrivilegesUnlessRoot) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may install filters without no_new_privs";
  EXPECT_NE(0, in_child([] { return enter_serving_mode(ServingMode::kDaemon).has_value() ? 0 : 1; }));
}

}  // namespace
}  // namespace tie::os
