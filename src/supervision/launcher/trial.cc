#include "supervision/launcher/trial.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "os/process.h"
#include "os/program_files.h"

namespace tie::launcher {
namespace {

constexpr int64_t kTrialLimitMs = 5000;

// The first line that was said, for the person who has to repair it.
std::string first_line_of(int fd) {
  char buffer[512];
  ssize_t n = ::read(fd, buffer, sizeof buffer);
  std::string text(buffer, static_cast<size_t>(std::max<ssize_t>(n, 0)));
  return text.substr(0, text.find('\n'));
}

}  // namespace

Result<void> try_sandbox(os::SandboxLauncher& launcher) {
  os::SandboxProfile profile;
  profile.name = "trial";
  profile.program = "/bin/true";
  TIE_TRY(os::ProgramLibraries needed, os::program_libraries(profile.program));
  if (!needed.loader.empty()) profile.binds.push_back({.path = needed.loader, .executable = true});
  for (const std::string& library : needed.libraries) profile.binds.push_back({.path = library, .executable = true});
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return fail_errno("pipe", errno);
  os::Fd reader(ends[0]), writer(ends[1]);
  TIE_TRY(os::SandboxedProcess process, launcher.spawn(profile, {.standard_error = writer.get()}));
  TIE_TRY(os::Fd pidfd, os::pidfd_open(process.monitor));
  TIE_TRY(bool ended, os::pidfd_wait_exit(pidfd.get(), Deadline::in_ms(kTrialLimitMs)));
  if (!ended) ::kill(process.monitor, SIGKILL);
  int status = 0;
  ::waitpid(process.monitor, &status, 0);
  if (ended && WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  return fail(Code::kNotReady, fmt::format("a trial sandbox ({}) {}: {}", launcher.name(), ended ? "failed" : "hung",
                                           first_line_of(reader.get())));
}

}  // namespace tie::launcher
