#include "os/sandbox.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <map>
#include <optional>

#include "os/spawn_plan.h"

namespace tie::os {
namespace {

// Descriptors that bubblewrap itself uses lie above those the program inherits.
constexpr int kSeccompFd = 40;
constexpr int kStatusFd = 41;

[[noreturn]] void run_child(const SpawnPlan& plan, char* const* words, char* const* environment, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kSetupFailedExit);  // the parent died before the line above
  ::setsid();
  reset_signals();
  ::umask(0077);
  arrange_descriptors(plan);
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  apply_limits(plan.limits);
  ::execve(words[0], words, environment);
  child_fails("starting the program");
}

Result<pid_t> fork_and_exec(SpawnPlan plan) {
  std::vector<char*> words = pointers(plan.words), environment = pointers(plan.environment);
  pid_t parent = ::getpid();
  pid_t pid = ::fork();
  if (pid < 0) return fail_errno("starting a process", errno);
  if (pid == 0) run_child(plan, words.data(), environment.data(), parent);
  return pid;
}

std::optional<std::string> find_program(const char* name) {
  for (const char* folder : {"/usr/bin/", "/bin/", "/usr/local/bin/"}) {
    std::string path = std::string(folder) + name;
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return std::nullopt;
}

class BubblewrapLauncher final : public SandboxLauncher {
 public:
  explicit BubblewrapLauncher(std::string bubblewrap) : bubblewrap_(std::move(bubblewrap)) {}
  const char* name() const override { return "bubblewrap"; }

  Result<SandboxedProcess> spawn(const SandboxProfile& profile, const SpawnDescriptors& descriptors) override {
    TIE_TRY(SpawnPlan plan, plan_for(profile, descriptors));
    TIE_TRY(Fd filter, filter_pipe(profile.syscalls));
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno("pipe", errno);
    Fd status_reader(ends[0]), status_writer(ends[1]);
    if (filter) plan.descriptors.emplace_back(filter.get(), kSeccompFd);
    plan.descriptors.emplace_back(status_writer.get(), kStatusFd);
    plan.words = bubblewrap_command(bubblewrap_, profile, filter ? kSeccompFd : -1, kStatusFd);
    // bubblewrap itself needs nothing from the environment; what the program gets is on the command line.
    TIE_TRY(pid_t pid, fork_and_exec(std::move(plan)));
    return SandboxedProcess{pid, -1, std::move(status_reader)};
  }

 private:
  // bubblewrap reads the filter to the end of a descriptor: a pipe holds it whole and cannot be read twice by mistake.
  Result<Fd> filter_pipe(SyscallPolicy policy) {
    auto known = programs_.find(policy);
    if (known == programs_.end()) {
      TIE_TRY(Bytes program, seccomp_program(policy));
      known = programs_.emplace(policy, std::move(program)).first;
    }
    if (known->second.empty()) return Fd();
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return fail_errno("pipe", errno);
    Fd reader(ends[0]), writer(ends[1]);
    TIE_CHECK_OK(write_all(writer.get(), known->second, Deadline::in_ms(1000)));
    return reader;
  }

  std::string bubblewrap_;
  std::map<SyscallPolicy, Bytes> programs_;
};

class UnprotectedLauncher final : public SandboxLauncher {
 public:
  const char* name() const override { return "none"; }

  Result<SandboxedProcess> spawn(const SandboxProfile& profile, const SpawnDescriptors& descriptors) override {
    TIE_TRY(SpawnPlan plan, plan_for(profile, descriptors));
    plan.words = {profile.program};
    plan.words.insert(plan.words.end(), profile.arguments.begin(), profile.arguments.end());
    for (const auto& [name, value] : profile.environment) plan.environment.push_back(name + "=" + value);
    TIE_TRY(pid_t pid, fork_and_exec(std::move(plan)));
    return SandboxedProcess{pid, pid, Fd()};
  }
};

}  // namespace

std::vector<std::string> bubblewrap_command(const std::string& bubblewrap, const SandboxProfile& profile,
                                            int seccomp_fd, int status_fd) {
  std::vector<std::string> out = {bubblewrap,
                                  "--unshare-user",
                                  "--unshare-pid",
                                  "--unshare-ipc",
                                  "--unshare-uts",
                                  "--unshare-cgroup-try",
                                  "--uid",
                                  "1000",
                                  "--gid",
                                  "1000",
                                  "--hostname",
                                  "tie",
                                  "--cap-drop",
                                  "ALL",
                                  "--die-with-parent",
                                  "--as-pid-1",
                                  "--clearenv"};
  auto add = [&](std::initializer_list<std::string> words) { out.insert(out.end(), words); };
  if (!profile.host_network) add({"--unshare-net"});
  for (const auto& [name, value] : profile.environment) add({"--setenv", name, value});
  if (profile.proc) add({"--proc", "/proc"});
  for (const std::string& folder : profile.tmpfs) add({"--perms", "0700", "--tmpfs", folder});
  for (const Bind& bind : profile.binds)
    add({bind.device     ? "--dev-bind"
         : bind.writable ? "--bind"
                         : "--ro-bind",
         bind.path, bind.at.empty() ? bind.path : bind.at});
  add({"--ro-bind", profile.program, profile.program, "--remount-ro", "/", "--chdir", "/"});
  if (seccomp_fd >= 0) add({"--seccomp", std::to_string(seccomp_fd)});
  if (status_fd >= 0) add({"--json-status-fd", std::to_string(status_fd)});
  add({"--", profile.program});
  out.insert(out.end(), profile.arguments.begin(), profile.arguments.end());
  return out;
}

Result<void> await_child(SandboxedProcess& process, Deadline deadline) {
  if (process.child > 0) return {};
  // The first line is {"child-pid": N, ...}; its braces and order are bubblewrap's documented format.
  std::string text;
  while (text.find('\n') == std::string::npos && text.size() < 4096) {
    uint8_t byte;
    TIE_CHECK_OK(read_exact(process.status.get(), {&byte, 1}, deadline));
    text.push_back(static_cast<char>(byte));
  }
  constexpr std::string_view kKey = "\"child-pid\":";
  size_t at = text.find(kKey);
  long pid = at == std::string::npos ? 0 : std::strtol(text.c_str() + at + kKey.size(), nullptr, 10);
  if (pid <= 0) return fail(Code::kInternal, "bubblewrap did not say which process it started");
  process.child = static_cast<pid_t>(pid);
  return {};
}

Result<std::unique_ptr<SandboxLauncher>> make_bubblewrap_launcher() {
  std::optional<std::string> bubblewrap = find_program("bwrap");
  if (!bubblewrap) return fail(Code::kNotReady, "bubblewrap (bwrap) is not installed: apt install bubblewrap");
  return std::make_unique<BubblewrapLauncher>(std::move(*bubblewrap));
}

std::unique_ptr<SandboxLauncher> make_unprotected_launcher() {
  return std::make_unique<UnprotectedLauncher>();
}

}  // namespace tie::os
