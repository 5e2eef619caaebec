#include "os/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "os/unix_socket.h"

namespace tie::os {
namespace {

// What a process does to itself cannot be undone, so each test does it in a child; the child's exit status is the
// verdict.
int in_child(const std::function<int()>& body) {
  pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Process, HardeningClosesTheKnownDoors) {
  EXPECT_EQ(0, in_child([] {
              ::setenv("LD_PRELOAD_TEST", "x", 1);
              ::setenv("TIE_KEPT", "y", 1);
              if (!harden_process()) return 1;
#ifndef TIE_SANITIZED
              if (::prctl(PR_GET_DUMPABLE) != 0) return 2;
#endif
              if (::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1) return 3;
              rlimit core{};
              ::getrlimit(RLIMIT_CORE, &core);
              if (core.rlim_max != 0) return 4;
              if (::getenv("LD_PRELOAD_TEST") != nullptr || ::getenv("HOME") != nullptr) return 5;
              if (::getenv("TIE_KEPT") == nullptr) return 6;
              int ends[2];
              if (::pipe(ends) != 0) return 7;
              ::close(ends[0]);
              return ::write(ends[1], "x", 1) < 0 ? 0 : 8;  // SIGPIPE would end the child
            }));
}

TEST(Process, ActivationTakesDescriptorThreeOnce) {
  EXPECT_EQ(0, in_child([] {
              auto pair = socket_pair();
              if (!pair || ::dup2(pair->first.get(), 3) < 0) return 1;
              if (pair->first.get() == 3) pair->first.release();
              ::setenv("LISTEN_FDS", "1", 1);
              auto fd = activation_connection();
              if (!fd || fd->get() != 3 || !(::fcntl(3, F_GETFD) & FD_CLOEXEC)) return 2;
              return activation_connection().has_value() ? 3 : 0;
            }));
}

TEST(Process, ActivationForAnotherProcessIsNotOurs) {
  EXPECT_EQ(0, in_child([] {
              ::setenv("LISTEN_FDS", "1", 1);
              ::setenv("LISTEN_PID", "1", 1);
              auto fds = activation_fds();
              return fds && fds->empty() ? 0 : 1;
            }));
  EXPECT_EQ(0, in_child([] {
              ::setenv("LISTEN_FDS", "1000000", 1);
              return activation_fds().has_value() ? 1 : 0;
            }));
}

TEST(Process, PidfdWaitsSignalsAndSeesTheExit) {
  pid_t pid = ::fork();
  if (pid == 0) {
    ::pause();
    ::_exit(0);
  }
  auto fd = pidfd_open(pid);
  ASSERT_TRUE(fd);
  EXPECT_FALSE(*pidfd_wait_exit(fd->get(), Deadline::in_ms(20)));
  ASSERT_TRUE(pidfd_signal(fd->get(), SIGKILL));
  EXPECT_TRUE(*pidfd_wait_exit(fd->get(), Deadline::in_ms(30'000)));
  ::waitpid(pid, nullptr, 0);
}

TEST(Process, TerminationArrivesOnTheDescriptor) {
  EXPECT_EQ(0, in_child([] {
              auto fd = termination_signal_fd();
              if (!fd) return 1;
              ::kill(::getpid(), SIGTERM);
              return wait_readable(fd->get(), Deadline::in_ms(30'000)) ? 0 : 2;
            }));
}

TEST(Process, ReadinessIsToldOnceOnTheLaunchersPipe) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Fd reader(ends[0]), writer(ends[1]);
  ::setenv("TIE_READY_FD", std::to_string(writer.release()).c_str(), 1);
  notify_ready();
  notify_ready();
  char buffer[32];
  EXPECT_EQ(::read(reader.get(), buffer, sizeof buffer), 8);
  EXPECT_EQ(::read(reader.get(), buffer, sizeof buffer), 0);
}

}  // namespace
}  // namespace tie::os
