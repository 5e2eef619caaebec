#include "inference/hosts/server/rank_start.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <string_view>

#include "os/fd.h"
#include "os/process.h"

extern char** environ;

namespace tie::runtime_host {
namespace {

// Out of the way of the numbers that the rank will know its descriptors by.
Result<os::Fd> moved_up(int fd) {
  os::Fd out(::fcntl(fd, F_DUPFD_CLOEXEC, kAfterRankFds));
  if (!out) return fail_errno("preparing a rank's descriptors", errno);
  return out;
}

}  // namespace

Result<pid_t> start_rank_process(const std::vector<std::string>& arguments, const std::array<int, 4>& fds) {
  std::array<os::Fd, 4> high;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  for (size_t i = 0; i < fds.size(); ++i) {
    auto moved = moved_up(fds[i]);
    if (!moved) {
      ::posix_spawn_file_actions_destroy(&actions);
      return std::unexpected(std::move(moved.error()));
    }
    high[i] = std::move(*moved);
    ::posix_spawn_file_actions_adddup2(&actions, high[i].get(), kWeightsFd + static_cast<int>(i));
  }
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return fail_errno("starting a rank of the model", error);
  return pid;
}

Result<void> begin_rank_life() {
  TIE_CHECK_OK(os::harden_process());
  // Should the runtime end without a word, so do we; the socket tells us if it had ended already.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int fd = kWeightsFd; fd < kAfterRankFds; ++fd) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return {};
}

Result<void> parse_numbers(char** arguments, std::span<uint32_t* const> numbers) {
  for (uint32_t* number : numbers) {
    const std::string_view text = *arguments++;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
    if (error != std::errc() || end != text.data() + text.size())
      return fail(Code::kBadRequest, "a rank's argument is not a number");
  }
  return {};
}

}  // namespace tie::runtime_host
