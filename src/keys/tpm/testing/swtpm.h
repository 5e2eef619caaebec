// For tests: a TPM emulator of its own (Debian's swtpm) on a unix socket, without state on disk beyond its folder.
#pragma once
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/clock.h"
#include "base/random.h"

namespace tie::tpm::testing {

class Swtpm {
 public:
  static bool available() { return std::filesystem::exists("/usr/bin/swtpm"); }
  Swtpm() {
    std::filesystem::create_directories(folder_);
    start();
  }
  ~Swtpm() {
    stop();
    std::filesystem::remove_all(folder_);
  }
  // As a reboot of the machine: keys stay, PCRs do not.
  void reboot() {
    stop();
    start();
  }
  std::string socket() const { return folder_ + "/tpm.sock"; }
  const std::string& folder() const { return folder_; }

 private:
  void start() {
    std::filesystem::remove(socket());
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that crashes leaves nothing behind
      ::execl("/usr/bin/swtpm", "swtpm", "socket", "--tpm2", "--tpmstate", ("dir=" + folder_).c_str(), "--server",
              ("type=unixio,path=" + socket()).c_str(), "--flags", "startup-clear,not-need-init", nullptr);
      ::_exit(127);
    }
    const Deadline deadline = Deadline::in_ms(20'000);
    while (!std::filesystem::exists(socket()) && !deadline.passed()) ::usleep(10'000);
  }
  void stop() {
    ::kill(pid_, SIGTERM);
    ::waitpid(pid_, nullptr, 0);
  }
  const std::string folder_ = "/dev/shm/tie-swtpm-" + random_hex(8);
  pid_t pid_ = -1;
};

}  // namespace tie::tpm::testing
